"""DiffQKV against plain formulas, its bytes, and where it is refused."""

import numpy as np
import pytest

from mnemax.configs.load import load_model
from mnemax.errors import UserError
from mnemax.evaluation.accounting import state_bytes
from tests.layers.plain import X, attended, heads, layer_and_weights, logits, turned

PROJECTION = "layer.attention.projection"


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("augmented_query=linear", "value_width=12"),
        ("augmented_query=none", "query_width=null", "key_width=16"),
        ("key_heads=4", "value_heads=2", "key_width=null", "rope=null"),
        ("key_heads=1", "value_heads=4", "scale=0.5"),
    ],
    ids=["gated, lifted", "linear, lifted", "plain, as wide", "more keys than values", "one key head"],
)
def test_the_formula(overrides):
    attention, out, w = layer_and_weights("diffqkv", *overrides)
    c = attention.projection
    h = X.astype(np.float64)
    if c.augmented_query != "none":
        h = X @ w["w_up"]
    if c.augmented_query == "gated":
        gate = X @ w["w_gate"]
        h = h * gate / (1 + np.exp(-gate))
    q, k, v = heads(h, w["w_q"]), heads(X, w["w_k"]), heads(X, w["w_v"])
    if c.key_width == 8:
        k = k @ w["w_lift"]
    if c.rope is not None:
        q, k = turned(q), turned(k)
    expected = attended(logits(q, k, 1 / 4 if c.scale is None else c.scale), v, w["w_o"])
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-4)


def test_bytes_of_sigma():
    """Sigma-1.5B keeps 66,560 B a token in 26 layers, grouped queries of 16 heads 106,496 B."""
    sigma = ["key_heads=4", "value_heads=16", "head_width=64", "key_width=null", "heads=32"]
    grouped = ["kv_heads=16", "head_width=64", "heads=32"]

    def a_token(model: str, fields: list[str]) -> int:
        changes = ["dtype=bfloat16", "stages=[{repeat: 26, layers: [{}]}]", *(f"{PROJECTION}.{field}" for field in fields)]
        config = load_model(model, changes)
        return state_bytes(config, 1, 101) - state_bytes(config, 1, 100)

    assert a_token("diffqkv", sigma) == 66_560
    assert a_token("llama", grouped) == 106_496


BOUNDED = ["layer.attention.memory={kind: bounded, budget: 8}", "layer.attention.retention={kind: key_norm}"]
REFUSED = {
    "keys": ([f"{PROJECTION}.key_heads=3"], "heads (4) is not divisible by key_heads (3)"),
    "values": ([f"{PROJECTION}.value_heads=3"], "heads (4) is not divisible by value_heads (3)"),
    "wide keys": ([f"{PROJECTION}.key_width=18"], "key_width (18) exceeds head_width (16)"),
    "no width": ([f"{PROJECTION}.query_width=null"], "augmented_query: gated and query_width (None) go together"),
    "slots a head": (BOUNDED, "projection diffqkv writes what belongs to no single one"),
    "pairs": (
        ["layer.attention.memory={kind: linear}", f"{PROJECTION}.rope=null"],
        "value_heads (4) of projection diffqkv are unlike",
    ),
    "lifted": (
        ["layer.attention.memory={kind: linear}", f"{PROJECTION}.rope=null", f"{PROJECTION}.value_heads=2"],
        "lifts keys (key_width)",
    ),
}


@pytest.mark.parametrize(("overrides", "says"), REFUSED.values(), ids=REFUSED)
def test_refused(overrides, says):
    with pytest.raises(UserError) as refusal:
        load_model("diffqkv", overrides)
    assert says in str(refusal.value) and str(refusal.value).count("\n") == 0


def test_slots_a_head_where_heads_are_alike():
    load_model("diffqkv", [*BOUNDED, f"{PROJECTION}.value_heads=2"])
