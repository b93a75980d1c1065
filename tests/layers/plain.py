"""A layer of a shipped model with weights of every size, and attention in float64 numpy to hold it to."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from mnemax.configs.load import load_model
from mnemax.layers.attention import Attention
from mnemax.layers.memories import Place
from mnemax.layers.param import Init

T = 19
X = np.random.default_rng(0).standard_normal((2, T, 64)).astype(np.float32)


def layer_and_weights(model: str, *overrides: str) -> tuple[Any, jax.Array, dict[str, np.ndarray]]:
    """A model's first attention, its projection with these overrides: its configuration, what it makes of X, and its weights."""
    config = load_model(model, [f"layer.attention.projection.{override}" for override in overrides])
    attention = Attention(config.layers[0].attention, config, Init(config, jax.random.key(0)))
    rng = np.random.default_rng(1)
    state = jax.tree.map(lambda a: a + 0.2 * rng.standard_normal(a.shape).astype(np.float32), nnx.state(attention, nnx.Param))
    nnx.update(attention, state)
    index = jnp.arange(T)
    out = attention(jnp.asarray(X), Place(index, jnp.tile(index, (2, 1))), None, {}, "auto")[0]
    named = {".".join(map(str, path[1:])): np.asarray(v[...], np.float64) for path, v in nnx.to_flat_state(state)}
    return config.layers[0].attention, out, named


def heads(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """[B, T, D] times [D, N, H]."""
    return np.einsum("btd,dnh->btnh", x, weight)


def normed(x: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """RMSNorm over the last axis."""
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + 1e-6) * scale


def turned(x: np.ndarray, theta: float = 10_000.0) -> np.ndarray:
    """RoPE of [B, T, N, H] at positions 0 to T - 1: pairs (i, i + H/2) as complex numbers."""
    half = x.shape[-1] // 2
    angle = np.arange(x.shape[1])[:, None] * theta ** (-np.arange(half) / half)
    z = (x[..., :half] + 1j * x[..., half:]) * np.exp(1j * angle)[:, None]
    return np.concatenate([z.real, z.imag], axis=-1)


def logits(q: np.ndarray, k: np.ndarray, scale: float) -> np.ndarray:
    """[B, N, T, S] of queries [B, T, N, H] and keys [B, S, K, H]."""
    return scale * np.einsum("btnh,bsnh->bnts", q, np.repeat(k, q.shape[2] // k.shape[2], axis=2))


def attended(z: np.ndarray, v: np.ndarray, w_o: np.ndarray, seen: np.ndarray | None = None) -> np.ndarray:
    """The layer's output of logits [B, N, T, S], those not `seen` [T, S] (default: of later keys) hidden, and values."""
    z = np.where(np.tril(np.ones(z.shape[-2:], bool)) if seen is None else seen, z, -np.inf)
    p = np.exp(z - z.max(axis=-1, keepdims=True))
    v = np.repeat(v, z.shape[1] // v.shape[2], axis=2)
    return np.einsum("bnts,bsnh,nhd->btd", p / p.sum(axis=-1, keepdims=True), v, w_o)
