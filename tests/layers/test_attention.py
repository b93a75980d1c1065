"""What an attention layer adds around its projection, and taps of each token's own, against plain formulas."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from mnemax.configs.load import load_model
from mnemax.layers.attention import Attention, Published
from mnemax.layers.convolution import DynamicTaps, ShortConvolution
from mnemax.layers.memories import Place
from mnemax.layers.param import Init

B, T, D = 2, 7, 64
RNG = np.random.default_rng(0)
X = jnp.asarray(RNG.standard_normal((B, T, D)), jnp.float32)
PLACE = Place(jnp.arange(T), jnp.tile(jnp.arange(T), (B, 1)))


def attention(model: str, layer: int) -> Attention:
    config = load_model(model)
    built = Attention(config.layers[layer].attention, config, Init(config, jax.random.key(0)))
    nnx.update(
        built, jax.tree.map(lambda a: a + 0.3 * RNG.standard_normal(a.shape).astype(np.float32), nnx.state(built, nnx.Param))
    )
    return built


def softmax_attention(q, k, v):
    logits = np.einsum("btnh,bsnh->bnts", q, np.repeat(k, 2, axis=2)) / np.sqrt(q.shape[-1])
    logits = np.where(np.tril(np.ones((T, T), bool)), logits, -np.inf)
    p = np.exp(logits - logits.max(-1, keepdims=True))
    return np.einsum("bnts,bsnh->btnh", p / p.sum(-1, keepdims=True), np.repeat(v, 2, axis=2))


def test_output_gates():
    """o * sigmoid(W_g x), a number a head or one for each of its numbers."""
    for layer, width in ((0, 1), (1, 16)):
        built = attention("gated_output", layer)
        first = {name: jnp.asarray(RNG.standard_normal((B, T, 2, 16)), jnp.float32) for name in "kv"}
        bus = {"first": Published(None, first)} if layer else {}
        q, entry, _ = built.projection(X, PLACE, None)
        k, v = (np.asarray(built._mixed(entry, bus)[name], np.float64) for name in "kv")
        assert built.gate is not None
        gate = 1 / (1 + np.exp(-np.einsum("btd,dnh->btnh", X, built.gate[...])))
        assert gate.shape[-1] == width
        expected = np.einsum("btnh,nhd->btd", softmax_attention(np.asarray(q, np.float64), k, v) * gate, built.projection.w_o[...])
        np.testing.assert_allclose(built(X, PLACE, None, bus, "auto")[0], expected, rtol=1e-4, atol=1e-5)


def test_entry_residual():
    """v + rate (v_first - v), a rate a head."""
    built = attention("gated_output", 1)
    mine, first = ({name: jnp.asarray(RNG.standard_normal((B, T, 2, 16)), jnp.float32) for name in "kv"} for _ in range(2))
    mixed = built._mixed(mine, {"first": Published(None, first)})
    for name in "kv":
        rate = np.asarray(built.mix[name][...])[:, None]
        np.testing.assert_allclose(mixed[name], (1 - rate) * mine[name] + rate * first[name], atol=1e-6)


def test_dynamic_taps():
    """y_t = sum_w (static_w + (U z_t)_w) x_{t-w}, z_t = Z x_t, within the document."""
    W, R, channels = 3, 5, (2, 4)
    init = Init(load_model("llama"), jax.random.key(0))
    static, dynamic = ShortConvolution(W, channels, ("heads", "head"), init), DynamicTaps(W, R, channels, ("heads", "head"), init)
    heads = RNG.standard_normal((B, T, *channels)).astype(np.float32)
    positions = np.array([[0, 1, 2, 3, 4, 5, 6], [0, 1, 0, 1, 2, 3, 4]])
    y, _ = static(jnp.asarray(heads), Place(jnp.arange(T), jnp.asarray(positions)), None, dynamic(X))
    own = np.einsum("btd,dr,rwnh->btwnh", X, dynamic.z[...], dynamic.u[...]) + np.asarray(static.taps[...])
    expected = np.zeros_like(heads)
    for b in range(B):
        for t in range(T):
            for w in range(min(W, positions[b, t] + 1)):
                expected[b, t] += own[b, t, w] * heads[b, t - w]
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)
