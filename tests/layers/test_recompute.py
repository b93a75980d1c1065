"""Cached inputs against cached keys and values of the same weights: logits, greedy tokens, bytes."""

import numpy as np
import pytest

from mnemax.configs.load import load_model
from mnemax.errors import UserError
from mnemax.evaluation.accounting import state_bytes
from mnemax.models.generate import Generator, Sampling
from tests.laws.conftest import Architecture

PROJECTION = "layer.attention.projection"


def pair(dtype: str = "float32", *fields: str) -> tuple[Architecture, Architecture]:
    """Models that cache keys and values, and inputs; their weights are the same."""
    changes = [f"dtype={dtype}", *(f"{PROJECTION}.{field}" for field in ("kv_heads=2", *fields))]
    found = tuple(Architecture(name, load_model(name, changes)) for name in ("mha", "recompute"))
    assert found[0].params.keys() == found[1].params.keys()
    return found


@pytest.mark.parametrize(
    "fields", [(), ("qk_norm=head", "softcap=5.0"), ("rope=null", "scale=0.4")], ids=["plain", "normed", "NoPE"]
)
def test_logits_are_those_of_grouped_queries(fields):
    cached, recomputed = pair("float32", *fields)
    tokens, places = cached.tokens(), np.stack([np.arange(24), np.r_[np.arange(9), np.arange(15)]]).astype(np.int32)
    expected = np.asarray(cached.logits(tokens, places))
    state, found = recomputed.init_state(2, 24), []
    for part in (slice(0, 13), slice(13, 14), slice(14, 24)):
        logits, state = recomputed.decode(tokens[:, part], places[:, part], state)
        found.append(logits)
    np.testing.assert_allclose(np.concatenate(found, axis=1), expected, atol=1e-5 * np.abs(expected).max())


def test_greedy_tokens_are_those_of_grouped_queries():
    prompts = [row.tolist() for row in np.random.default_rng(3).integers(0, 264, (4, 16))]
    cached, recomputed = (Generator(a.config, a.params, Sampling(temperature=0.0)).generate(prompts, 32) for a in pair())
    assert cached == recomputed


@pytest.mark.parametrize(("kv_heads", "ratio"), [(4, 1 / 2), (2, 1), (1, 2)])
def test_bytes_beside_grouped_queries(kv_heads, ratio):
    """Heads fill the width: half of multi-head attention's, as much with half of the heads, twice with a quarter."""
    changes = [f"{PROJECTION}.kv_heads={kv_heads}"]
    inputs, pairs = (state_bytes(load_model(name, changes), 2, 50) - 4 for name in ("recompute", "mha"))
    assert inputs == ratio * pairs


REFUSED = {
    "heads that do not divide": ([f"{PROJECTION}.kv_heads=3"], "heads (4) is not divisible by kv_heads (3)"),
    "slots a head": (
        ["layer.attention.memory={kind: bounded, budget: 8}", "layer.attention.retention={kind: key_norm}"],
        "projection recompute writes what belongs to no single one",
    ),
    "ends of chunks": (["layer.attention.memory={kind: chunk_ends, chunk: 4, lead: 2}"], "belongs to no single one"),
    "sums": (["layer.attention.memory={kind: linear}", f"{PROJECTION}.rope=null"], "writes its input"),
    "codes": (["layer.attention.memory={kind: quantized}"], "rotated when read"),
    "sharing": (["stages=[{layers: [{attention: {write: a}}, {attention: {read: a}}]}]"], "reads its own memory only"),
}


@pytest.mark.parametrize(("overrides", "says"), REFUSED.values(), ids=REFUSED)
def test_refused(overrides, says):
    with pytest.raises(UserError) as refusal:
        load_model("recompute", overrides)
    assert says in str(refusal.value) and str(refusal.value).count("\n") == 0
