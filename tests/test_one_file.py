"""A kind is one file: a memory in a folder of the user's trains, decodes as its parallel form, and is described."""

import os
import subprocess
import sys
from pathlib import Path

PLUGIN = '''
"""Every token whose position is a multiple of `stride`, and no other."""

from typing import Literal

import jax.numpy as jnp

from mnemax.configs.base import PositiveInt
from mnemax.layers.memories import Memory, MemoryConfig, Slots
from mnemax.layers.memories.full import Full


class StridedConfig(MemoryConfig):
    kind: Literal["strided"] = "strided"
    stride: PositiveInt = 3

    def build(self, entry, init):
        return Strided(self.stride)

    def cache_bytes(self, batch, capacity, entry):
        return batch * capacity * (sum(leaf.size * leaf.dtype.itemsize for leaf in entry.values()) + 4)

    def keys_read(self, context):
        return -(-context // self.stride)


class Strided(Memory):
    def __init__(self, stride):
        self.stride = stride

    def init(self, batch, capacity, entry):
        return {"entries": Full().init(batch, capacity, entry), "index": jnp.full((batch, capacity), -1, jnp.int32)}

    def update(self, state, entry, place, reader):
        entries, _ = Full().update(state["entries"], entry, place, reader)
        kept = jnp.where(place.positions % self.stride == 0, place.index, -1)
        index = state["index"].at[:, place.index].set(kept)
        return {"entries": entries, "index": index}, Slots(entries, index)
'''

MODEL = """
width: 32
vocab_size: 264
dtype: float32
layer:
  attention:
    projection: {kind: gqa, heads: 2, kv_heads: 1, head_width: 16}
    memory: {kind: strided, stride: 4}
  feedforward: {kind: glu, width: 64}
stages: [{repeat: 2, layers: [{}]}]
"""

PROGRAM = """
import jax
import numpy as np
from mnemax.configs.load import load_model
from mnemax.configs.schema import RunConfig
from mnemax.models.params import bind
from mnemax.training.step import init_state, make_train_step

config = load_model("strided.yaml")
run = RunConfig(name="strided", steps=20, model=config, data={"sequence_length": 24}, optimizer={"peak_lr": 1e-2})
tokens = np.random.default_rng(0).integers(0, 264, (2, 25), np.int32)
places = np.tile(np.r_[:10, :14], (2, 1)).astype(np.int32)
rows = {"inputs": tokens[:, :-1], "targets": tokens[:, 1:], "positions": places, "weights": np.ones((2, 24), np.float32)}
state, step, losses = init_state(run), make_train_step(run), []
for _ in range(20):
    state, sums = step(state, {name: value[None] for name, value in rows.items()})
    losses.append(float(sums["loss"] / sums["tokens"]))
assert losses[-1] < 0.8 * losses[0], losses

decode = jax.jit(lambda params, *rows: bind(config, params)(*rows))
parallel, _ = decode(state.params, tokens[:, :24], places)
memory, found = bind(config, state.params).init_state(2, 24), []
for i in range(24):
    logits, memory = decode(state.params, tokens[:, i : i + 1], places[:, i : i + 1], memory)
    found.append(logits)
np.testing.assert_allclose(np.concatenate(found, axis=1), parallel, atol=1e-4)
"""


def test_a_memory_in_a_folder_of_the_users(tmp_path: Path):
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / "strided.py").write_text(PLUGIN)
    (tmp_path / "strided.yaml").write_text(MODEL)

    def python(*arguments: str) -> str:
        environment = os.environ | {"MNEMAX_PLUGINS": "plugins", "COLUMNS": "200"}
        command = [sys.executable, *arguments]
        result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr
        return result.stdout

    python("-c", PROGRAM)
    assert "strided stride=4" in python("-m", "mnemax", "describe", "strided.yaml")
    kinds = python("-m", "mnemax", "kinds")
    assert "| `strided` | Every token whose position is a multiple of `stride`, and no other. | `stride` = 3 |" in kinds
