"""Attention in plain XLA: queries in unrolled chunks, keys above the diagonal or out of the window never touched.

Memory is linear in the sequence: each chunk's probabilities are computed again in the backward pass.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from mnemax.kernels.mask import Mask

CHUNK = 128  # measured best of 64..512 on CPU; longer sequences use at most MOST_CHUNKS, so that compile time stays flat
MOST_CHUNKS = 16


def attend(
    q: Float[Array, "B T N H"],
    k: Float[Array, "B S K H"],
    v: Float[Array, "B S K Hv"],
    *,
    mask: Mask,
    scale: float,
    softcap: float | None = None,
) -> tuple[Float[Array, "B T N Hv"], Float[Array, "B T N"]]:
    """As `reference.attend`; products in the inputs' dtype, accumulated in float32."""
    T, S = q.shape[1], k.shape[1]
    if T == 1:
        return _chunk(q, k, v, mask, scale, softcap)
    size = max(CHUNK, -(-T // MOST_CHUNKS))
    chunk = jax.checkpoint(_chunk, static_argnums=(4, 5))
    outs = []
    for start in range(0, T, size):
        queries = slice(start, min(start + size, T))
        keys = _reach(mask, queries) if mask.aligned else slice(0, S)
        outs.append(chunk(q[:, queries], k[:, keys], v[:, keys], mask.block(queries, keys), scale, softcap))
    return jnp.concatenate([o for o, _ in outs], axis=1), jnp.concatenate([lse for _, lse in outs], axis=1)


def _reach(mask: Mask, queries: slice) -> slice:
    """The keys that these queries can see when rows are aligned: none later, none out of the window."""
    first = 0 if mask.window is None or mask.sinks else max(0, queries.start - mask.window + 1)
    return slice(first, queries.stop)


def _chunk(q, k, v, mask: Mask, scale: float, softcap: float | None):
    B, T, N, H = q.shape
    K = k.shape[2]
    q = (q * scale).astype(q.dtype).reshape(B, T, K, N // K, H)
    s = jnp.einsum("btkgh,bskh->bkgts", q, k, preferred_element_type=jnp.float32)
    if softcap is not None:
        s = softcap * jnp.tanh(s / softcap)
    seen = mask.allowed()[:, :, None]
    s = jnp.where(seen, s, -jnp.inf)
    m = jax.lax.stop_gradient(jnp.max(s, axis=-1, keepdims=True))
    m = jnp.where(jnp.isfinite(m), m, 0.0)
    p = jnp.exp(s - m)
    z = jnp.sum(p, axis=-1)
    o = jnp.einsum("bkgts,bskh->btkgh", p.astype(v.dtype), v, preferred_element_type=jnp.float32)
    some = jnp.where(z > 0, z, 1.0)
    lse = jnp.where(z > 0, jnp.log(some) + m[..., 0], -jnp.inf)
    o = o / jnp.moveaxis(some, 3, 1)[..., None]
    return o.reshape(B, T, N, v.shape[-1]).astype(v.dtype), jnp.moveaxis(lse, 3, 1).reshape(B, T, N)
