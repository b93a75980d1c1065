"""Query heads dealt out by the norms of keys: the published allocation in plain Python, and attention of repeated heads."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mnemax.configs.load import load_model
from mnemax.layers.attention import Attention
from mnemax.layers.memories import Place
from mnemax.layers.param import Init
from mnemax.layers.projections.key_driven import allocation
from mnemax.models.params import bind, init_params


def published(norms: np.ndarray, heads: int) -> list[int]:
    """Min-max normalised, rounded, mended at the largest or smallest; but none below 1."""
    m = (norms - norms.min()) / (norms.max() - norms.min())
    a = [max(1, round(x)) for x in heads * m / m.sum()]
    while sum(a) > heads:
        a[a.index(max(a))] -= 1
    while sum(a) < heads:
        a[a.index(min(a))] += 1
    return [j for j, count in enumerate(a) for _ in range(count)]


@pytest.mark.parametrize(("heads", "key_heads"), [(4, 2), (8, 4), (16, 4), (12, 6), (5, 5), (3, 1)])
def test_allocation(heads, key_heads):
    w = np.random.default_rng(heads).standard_normal((9, key_heads, 4)) * np.linspace(0.5, 3, key_heads)[:, None]
    norms = np.linalg.norm(w, axis=(0, 2))
    expected = published(norms, heads) if key_heads > 1 else [0] * heads
    assert allocation(jnp.asarray(w, jnp.float32), heads).tolist() == expected


def test_equal_norms_are_dealt_out_evenly():
    assert allocation(jnp.ones((3, 4, 2)), 8).tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


def test_equals_attention_of_repeated_heads():
    config = load_model("key_driven")
    layer = Attention(config.layers[0].attention, config, Init(config, jax.random.key(0)))
    projection, T = layer.projection, 7
    projection.w_k[...] = projection.w_k[...] * jnp.array([1.0, 9.0])[:, None]
    dealt = allocation(projection.w_k[...], 4)
    assert dealt.tolist() == [0, 1, 1, 1]
    x = jnp.asarray(np.random.default_rng(0).standard_normal((2, T, 64)), jnp.float32)
    place = Place(jnp.arange(T), jnp.tile(jnp.arange(T), (2, 1)))
    q, entry, _ = projection(x, place, None)
    k, v = (np.asarray(entry[name])[:, :, np.asarray(dealt)] for name in "kv")
    logits = np.where(np.tril(np.ones((T, T), bool)), np.einsum("btnh,bsnh->bnts", q, k) / 4, -np.inf)
    p = np.exp(logits - logits.max(-1, keepdims=True))
    out = np.einsum("bnts,bsnh->btnh", p / p.sum(-1, keepdims=True), v)
    expected = np.einsum("btnh,nhd->btd", out, projection.w_o[...])
    np.testing.assert_allclose(layer(x, place, None, {}, "auto")[0], expected, atol=1e-5)


def test_with_slots_of_each_key_heads_own():
    memory = "layer.attention.memory={kind: bounded, budget: 6, recent: 2}"
    config = load_model("key_driven", [memory, "layer.attention.retention={kind: h2o}"])
    params, T = init_params(config, jax.random.key(0)), 12
    tokens = jnp.asarray(np.random.default_rng(0).integers(0, 264, (2, T), np.int32))
    run = jax.jit(lambda p, *rows: bind(config, p)(*rows))
    state, found = bind(config, params).init_state(2, T), []
    for t in range(T):
        logits, state = run(params, tokens[:, t : t + 1], None, state)
        found.append(logits)
    np.testing.assert_allclose(np.concatenate(found, axis=1), run(params, tokens)[0], atol=2e-5)
