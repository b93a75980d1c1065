"""The definition of attention, in float32. Every other implementation is held equal to it."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from mnemax.kernels.mask import Mask, by_key


def attend(
    q: Float[Array, "B T N H"],
    k: Float[Array, "B S K H"],
    v: Float[Array, "B S K Hv"],
    *,
    mask: Mask,
    scale: float,
    softcap: float | None = None,
    key_bias: Float[Array, "B S K"] | None = None,
    key_slope: Float[Array, "B S K"] | None = None,
) -> tuple[Float[Array, "B T N Hv"], Float[Array, "B T N"]]:
    """softmax(softcap(scale q k^T) + key_bias + key_slope * age + mask) v, and the log-sum-exp of each query's logits.

    A query that sees no key gives exactly 0 and a log-sum-exp of -inf.
    """
    B, T, N, H = q.shape
    K = k.shape[2]
    q, k, v = (x.astype(jnp.float32) for x in (q, k, v))
    s = scale * jnp.einsum("btkgh,bskh->bkgts", q.reshape(B, T, K, N // K, H), k)
    if softcap is not None:
        s = softcap * jnp.tanh(s / softcap)
    if key_bias is not None:
        s = s + by_key(key_bias)
    if key_slope is not None:
        s = s + by_key(key_slope) * mask.age()[:, :, None]
    seen = mask.allowed()[:, :, None]  # [B, K or 1, 1, T, S]
    s = jnp.where(seen, s, -jnp.inf)
    m = jax.lax.stop_gradient(jnp.max(s, axis=-1, keepdims=True))
    m = jnp.where(jnp.isfinite(m), m, 0.0)
    p = jnp.exp(s - m)
    z = jnp.sum(p, axis=-1, keepdims=True)
    some = jnp.where(z > 0, z, 1.0)
    out = jnp.einsum("bkgts,bskh->btkgh", p / some, v)
    lse = jnp.where(z > 0, jnp.log(some) + m, -jnp.inf)[..., 0]
    return out.reshape(B, T, N, v.shape[-1]), jnp.moveaxis(lse, 3, 1).reshape(B, T, N)
