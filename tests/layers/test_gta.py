"""Grouped tied attention against a plain formula, its bytes, and where it is refused."""

import numpy as np
import pytest

from mnemax.configs.load import load_model
from mnemax.errors import UserError
from mnemax.evaluation.accounting import state_bytes
from tests.laws.conftest import Architecture
from tests.layers.plain import X, attended, heads, layer_and_weights, logits, turned

PROJECTION = "layer.attention.projection"


@pytest.mark.parametrize("rope_width", ["null", "4", "16"])
def test_the_formula(rope_width):
    """Queries and keys in two parts, with a sum of two logits instead of one of what is joined."""
    attention, out, w = layer_and_weights("gta", f"rope_width={rope_width}")
    still = 16 - (attention.projection.rope_width or 8)
    q, u, k_r = heads(X, w["w_q"]), heads(X, w["w_u"]), turned(heads(X, w["w_r"][:, None]))
    z = logits(q[..., :still], u[..., :still], 1 / 4) + logits(turned(q[..., still:]), k_r, 1 / 4)
    np.testing.assert_allclose(out, attended(z, u, w["w_o"]), rtol=1e-4, atol=1e-4)


def test_bytes_beside_grouped_queries():
    """G e + e / 2 of 2 G e."""
    sizes = ["dtype=bfloat16", f"{PROJECTION}.heads=8", f"{PROJECTION}.kv_heads=8"]
    tied, full = (state_bytes(load_model(model, sizes), 2, 100) - 4 for model in ("gta", "mha"))
    assert tied / full == (8 + 1 / 2) / 16


REFUSED = {
    "heads that do not divide": ([f"{PROJECTION}.kv_heads=3"], "heads (4) is not divisible by kv_heads (3)"),
    "too wide": ([f"{PROJECTION}.rope_width=18"], "rope_width (18) exceeds head_width (16)"),
    "no pairs": ([f"{PROJECTION}.rope_width=5"], "is odd"),
    "slots a head": (
        ["layer.attention.memory={kind: bounded, budget: 8}", "layer.attention.retention={kind: key_norm}"],
        "projection gta writes what belongs to no single one",
    ),
    "means": (
        ["layer.attention.memory={kind: dmc}", "layer.attention.retention={kind: merge_decision, compression: 4}"],
        "one tied vector a head",
    ),
}


@pytest.mark.parametrize(("overrides", "says"), REFUSED.values(), ids=REFUSED)
def test_refused(overrides, says):
    with pytest.raises(UserError) as refusal:
        load_model("gta", overrides)
    assert says in str(refusal.value) and str(refusal.value).count("\n") == 0


@pytest.mark.parametrize(
    "memory",
    [
        "{memory: {kind: quantized, keys: int8, values: int8, group: 4, residual: 4, rotation: hadamard}}",
        "{memory: {kind: bounded, budget: 7}, retention: {kind: key_norm}, projection: {kv_heads: 1}}",
    ],
    ids=["quantized", "bounded, one group"],
)
def test_other_memories(memory):
    """Steps equal the parallel form."""
    architecture = Architecture("gta", load_model("gta", [f"layer.attention={memory}"]))
    tokens, places = architecture.tokens(), np.tile(np.arange(24, dtype=np.int32), (2, 1))
    state, found = architecture.init_state(2, 24), []
    for i in range(24):
        logits, state = architecture.decode(tokens[:, i : i + 1], places[:, i : i + 1], state)
        found.append(logits)
    np.testing.assert_allclose(np.concatenate(found, axis=1), architecture.logits(tokens, places), rtol=1e-4, atol=3e-5)
