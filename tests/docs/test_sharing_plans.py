"""The plans of docs/sharing.md: they are what they say, and decode as they train."""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml

from mnemax.configs.schema import ModelConfig
from mnemax.evaluation.accounting import live_bytes, state_bytes
from mnemax.models.params import bind, init_params

PAGE = (Path(__file__).parents[2] / "docs/sharing.md").read_text()
PLANS = {name: yaml.safe_load(text) for name, text in re.findall(r"^```yaml\n# (\S+)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)}
GQA = {"kind": "gqa", "heads": 4, "kv_heads": 2, "head_width": 8}


def model(stages: list, projection=GQA, **sizes) -> ModelConfig:
    sizes = {"width": 32, "vocab_size": 64, "max_length": 64, "dtype": "float32"} | sizes
    layer = {"attention": {"projection": projection}, "feedforward": {"kind": "glu", "width": 16}}
    return ModelConfig.model_validate(sizes | {"layer": layer, "stages": stages})


@pytest.mark.parametrize("plan", ["mixattention", "tail", "lasagna-middle", *(
    pytest.param(name, marks=pytest.mark.slow) for name in ("cla2", "mlkv2", "yoco", "sandwich-top")
)])  # fmt: skip
def test_decoding_equals_the_parallel_form(plan):
    config, T = model(PLANS[plan]), 9  # as many tokens as passes
    params = init_params(config, jax.random.key(0))
    tokens = jnp.asarray(np.random.default_rng(0).integers(0, 64, (2, T), np.int32))
    run = jax.jit(lambda p, *rows: bind(config, p)(*rows))
    state, found = bind(config, params).init_state(2, T), []
    assert live_bytes(state) == state_bytes(config, 2, T)
    for t in range(T):
        logits, state = run(params, tokens[:, t : t + 1], None, state)
        found.append(logits)
    np.testing.assert_allclose(np.concatenate(found, axis=1), run(params, tokens)[0], atol=2e-5)


def test_every_plan_of_the_page_is_tested():
    assert set(PLANS) == {"cla2", "mlkv2", "yoco", "mixattention", "tail", "sandwich-top", "lasagna-middle"}


def bytes_a_token(stages: list, projection: dict) -> int:
    config = model(stages, {"heads": 16, "head_width": 64} | projection, width=1024, max_length=4096, dtype="bfloat16")
    live = live_bytes(jax.eval_shape(lambda: bind_shapes(config).init_state(1, 4096)))
    assert live == state_bytes(config, 1, 4096)
    return (live - 4) // 4096


def bind_shapes(config: ModelConfig):
    return bind(config, jax.eval_shape(lambda: init_params(config, jax.random.key(0))))


def test_table_of_bytes():
    plain = [{"repeat": 12, "layers": [{}]}]
    gqa = lambda kv_heads: {"kind": "gqa", "kv_heads": kv_heads}  # noqa: E731
    rows = [
        bytes_a_token(plain, gqa(16)),
        bytes_a_token(plain, gqa(4)),
        bytes_a_token(PLANS["cla2"], gqa(4)),
        bytes_a_token(plain, gqa(1)),
        bytes_a_token(PLANS["cla2"], gqa(1)),
        bytes_a_token(PLANS["mlkv2"], gqa(1)),
        bytes_a_token(plain, {"kind": "shared", "share": "kv", "kv_heads": 1}),
    ]
    table = re.findall(r"^\| [^|]* \| ([\d,]+) \| (1(?:/\d+)?) \|$", PAGE, re.MULTILINE)
    assert [int(number.replace(",", "")) for number, _ in table] == rows
    assert [rows[0] // int(part.removeprefix("1/")) for _, part in table] == rows
