"""What each memory keeps: how much of a token's value comes back, later, to a query that is its key (docs/architectures).

uv run python scripts/draw_kept.py docs/images/kept.png
"""

import math
import sys
from pathlib import Path
from typing import Any, override

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
from pydantic import TypeAdapter

from mnemax import registry
from mnemax.configs.load import load_model
from mnemax.evaluation.report.style import RC, new_figure, png
from mnemax.layers.memories import Place, Reader
from mnemax.layers.param import Init
from mnemax.layers.projections import Projection

T, H, SHARP = 48, 32, 12.0

RANKED = {"kind": "bounded", "budget": 12, "recent": 2}
MEANS = {"kind": "kvm", "chunk": 4, "rotated": 0}
# Title, memory, retention, what the tokens' gates are.
MEMORIES: list[tuple[str, dict, dict | None, dict[str, float]]] = [
    ("full", {"kind": "full"}, None, {}),
    ("window of 10, 2 sinks", {"kind": "window", "size": 10, "sinks": 2}, None, {}),
    ("quantized: keys in int2", {"kind": "quantized", "keys": "int2", "values": "int8", "group": 4, "residual": 8}, None, {}),
    ("chunk_ends: 4, lead 3", {"kind": "chunk_ends", "chunk": 4, "lead": 3}, None, {}),
    ("bounded: 12, random", RANKED, {"kind": "random"}, {}),
    ("bounded: 12, keydiff", RANKED, {"kind": "keydiff"}, {}),
    ("kvm: 12 slots", MEANS | {"growth": {"kind": "fixed", "slots": 12}}, None, {}),
    ("kvm: 4 sqrt(t) slots", MEANS | {"growth": {"kind": "power", "factor": 4.0, "power": 0.5}}, None, {}),
    ("dmc: half merged", {"kind": "dmc", "least": 4, "slack": 8}, None, {"importance": 1.0}),
    ("linear, decay 0.95", {"kind": "linear", "chunk": 8}, None, {"log_decay": math.log(0.95)}),
    ("delta, decay 0.98", {"kind": "delta", "chunk": 8}, None, {"beta": 1.0, "log_decay": math.log(0.98)}),
    ("taylor", {"kind": "taylor", "chunk": 8}, None, {}),
]


class AsTheyAre(Projection):
    """Queries and entries that are made here, and read by everyone's scale of logits."""

    softcap, reads = None, False

    def __init__(self, scale: float):
        self.scale = scale

    @override
    def expand(self, entries):
        return entries["k"], entries["v"]


def read(choice: str, fields: dict) -> Any:
    return TypeAdapter(registry.union(choice)).validate_python(fields)


def returned(memory: dict, retention: dict | None, gates: dict[str, float]) -> np.ndarray:
    """[T, T]: of token j's value (columns), a unit vector of its own, what a query at token i (rows) gets by j's key."""
    rng = np.random.default_rng(0)
    directions = rng.standard_normal((T, H))
    directions /= np.linalg.norm(directions, axis=-1, keepdims=True)
    recurrent = memory["kind"] in ("linear", "delta")
    keys = jnp.float32(directions if recurrent else np.sqrt(H) * directions)[None, :, None]
    entry: dict[str, Any] = {"k": keys, "v": jnp.eye(T, dtype=jnp.float32)[None, :, None]}
    entry |= {name: jnp.full((1, T, 1), value, jnp.float32) for name, value in gates.items()}
    if memory["kind"] == "dmc":
        entry["decision"] = jnp.float32(rng.standard_normal((1, T, 1)))
    place = Place(jnp.arange(T), jnp.arange(T)[None])
    init, chooses = Init(load_model("kvm"), jax.random.key(0)), None
    if retention is not None:
        chooses = read("retention", retention).build(None, None, init)
        entry |= chooses(keys, entry, place)
    spec = {name: jax.ShapeDtypeStruct(leaf.shape[2:], leaf.dtype) for name, leaf in entry.items()}
    built = read("memory", memory).build(spec, init)
    # As many query heads as tokens: head j asks for token j, at every token.
    query = jnp.broadcast_to(jnp.swapaxes(keys, 1, 2), (1, T, T, H))
    projection = AsTheyAre(1.0 if recurrent else SHARP / H)
    view = built.view(entry, place, Reader(query, projection, chooses, "reference"))
    out = view.read(query, projection, place, "reference")[0]
    return np.asarray(jnp.diagonal(out[0], axis1=1, axis2=2))


def main(out: Path) -> None:
    with matplotlib.rc_context(RC):
        figure = new_figure(6.6)
        for axes, (title, *one) in zip(figure.subplots(3, 4, sharex=True, sharey=True).flat, MEMORIES, strict=True):
            later = np.triu(np.full((T, T), np.nan), 1)
            image = axes.imshow(returned(*one) + later, vmin=0, vmax=1, cmap="magma_r", interpolation="nearest")
            axes.set_title(title, fontsize=9)
            axes.grid(visible=False)
        figure.supxlabel("token j")
        figure.supylabel("asked for at token i")
        figure.colorbar(image, ax=figure.axes, shrink=0.6, label="share of j's value that comes back")
        out.write_bytes(png(figure))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
