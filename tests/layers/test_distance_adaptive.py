"""Near and far tokens in one softmax against a plain formula, their bytes, and where they are refused."""

import numpy as np
import pytest

from mnemax.configs.load import load_model
from mnemax.errors import UserError
from mnemax.evaluation.accounting import state_bytes
from tests.layers.plain import T, X, attended, heads, layer_and_weights, logits, turned

ATTENTION = "layer.attention"


@pytest.mark.parametrize("overrides", [(), ("kv_heads=2", "rank=8"), ("rope=null", "scale=0.7")], ids=["plain", "grouped", "NoPE"])
def test_one_softmax_over_near_and_far(overrides):
    attention, out, w = layer_and_weights("distance_adaptive", *overrides)
    c, size = attention.projection, attention.memory.size
    through = X @ w["w_dn"] @ w["w_up"]
    rotated = turned if c.rope is not None else lambda x: x
    q, scale = rotated(heads(X, w["w_q"])), 1 / 4 if c.scale is None else c.scale
    z = np.concatenate([logits(q, rotated(heads(x, w["w_k"])), scale) for x in (X, through)], axis=-1)
    age = np.arange(T)[:, None] - np.arange(T)
    seen = np.concatenate([(age >= 0) & (age < size), age >= size], axis=1)
    v = np.concatenate([heads(x, w["w_v"]) for x in (X, through)], axis=1)
    np.testing.assert_allclose(out, attended(z, v, w["w_o"], seen), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("tokens", [4, 100])
def test_bytes(tokens):
    """2 G e of the latest 6 tokens, with an int32 row index, and r of all; three layers in float32."""
    found = state_bytes(load_model("distance_adaptive"), 1, tokens) - 4
    assert found == 3 * (min(tokens, 6) * (4 * 2 * 4 * 16 + 4) + tokens * 4 * 16)


REFUSED = {
    "another memory": ([f"{ATTENTION}.memory={{kind: full}}"], "makes the gate 'z', for which memory full has no use"),
    "another projection": (
        [f"{ATTENTION}.projection={{kind: gqa, heads: 4, kv_heads: 2, head_width: 16}}"],
        "memory near_far needs the gate 'z'",
    ),
    "heads that do not divide": ([f"{ATTENTION}.projection.kv_heads=3"], "heads (4) is not divisible by kv_heads (3)"),
    "sharing": (["stages=[{layers: [{attention: {write: a}}, {attention: {read: a}}]}]"], "reads its own memory only"),
}


@pytest.mark.parametrize(("overrides", "says"), REFUSED.values(), ids=REFUSED)
def test_refused(overrides, says):
    with pytest.raises(UserError) as refusal:
        load_model("distance_adaptive", overrides)
    assert says in str(refusal.value) and str(refusal.value).count("\n") == 0
