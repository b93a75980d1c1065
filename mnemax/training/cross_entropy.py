"""Cross-entropy of an unembedding without its logits: one chunk of positions at a time, gradients made in the same pass.

The loss is a scalar, so its gradient with respect to the logits is known up to one factor as soon as they are: forward computes
dx and dW chunk by chunk, backward multiplies them by that factor. Logits [B, T, V] never exist, and no product is done twice.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from mnemax.sharding import einsum
from mnemax.training.chunks import in_chunks

type Losses = tuple[Float[Array, ""], Float[Array, ""], Float[Array, ""], Float[Array, ""]]


def cross_entropy(
    x: Float[Array, "B T D"],
    matrix: Float[Array, "D V"],
    targets: Int[Array, "B T"],
    weights: Float[Array, "B T"],
    *,
    scale: float = 1.0,
    softcap: float | None = None,
    z_loss: float = 0.0,
    chunk: int = 512,
) -> Losses:
    """Weighted sums over positions, float32: nll + z_loss * z (this one alone has gradients), nll in nats, z = log(Z)^2, and hits,
    where the target's logit is the highest.

    Args:
        scale, softcap: logits are softcap * tanh(scale * x W / softcap).
        chunk: positions of each row whose logits exist at one time. Positions of weight 0 come last and their chunks cost nothing,
            so that where few positions are asked for, short chunks are the faster ones.
    """
    weights, x, targets = in_chunks(chunk, weights, x, targets)
    return _sums((scale, softcap, z_loss), matrix, x, targets, weights)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _sums(options, matrix, x, targets, weights) -> Losses:
    def add(sums, chunk):
        add = lambda: jax.tree.map(jnp.add, sums, _chunk(options, matrix, *chunk)[0])  # noqa: E731
        return jax.lax.cond(jnp.any(chunk[-1]), add, lambda: sums), None

    (nll, z, hits), _ = jax.lax.scan(add, (jnp.float32(0),) * 3, (x, targets, weights))
    return nll + options[2] * z, nll, z, hits


def _forward(options, matrix, x, targets, weights):
    scale, softcap, z_loss = options

    def add(totals, chunk):
        return jax.lax.cond(jnp.any(chunk[-1]), some, lambda totals, chunk: (totals, jnp.zeros_like(chunk[0])), totals, chunk)

    def some(totals, chunk):
        x, targets, weights = chunk
        sums, p, logits, lse, hit = _chunk(options, matrix, x, targets, weights)
        d = weights[..., None] * (p * (1 + 2 * z_loss * lse)[..., None] - hit)  # of the final logits
        if softcap is not None:
            d = d * (1 - jnp.square(logits / softcap))
        d = (d * scale).astype(x.dtype)
        dx = einsum("bcv,dv->bcd", d, matrix, axes=("batch", "seq", "residual"), dtype=jnp.float32)
        dw = einsum("bcd,bcv->dv", x, d, axes=("residual", "vocab"), dtype=jnp.float32)
        return jax.tree.map(jnp.add, totals, (sums, dw)), dx.astype(x.dtype)

    zeros = (jnp.float32(0),) * 3, jnp.zeros_like(matrix, jnp.float32)
    ((nll, z, hits), dw), dx = jax.lax.scan(add, zeros, (x, targets, weights))
    return (nll + z_loss * z, nll, z, hits), (dw.astype(matrix.dtype), dx)


def _backward(options, saved, cotangents):
    dw, dx = saved
    g = cotangents[0]
    return (g * dw).astype(dw.dtype), (g * dx).astype(dx.dtype), None, None


_sums.defvjp(_forward, _backward)


def _chunk(options, matrix, x, targets, weights):
    """The sums nll, z and hits; and probabilities, final logits [B, C, V], their log-sum-exp [B, C], and the targets' one-hot."""
    scale, softcap, _ = options
    logits = einsum("bcd,dv->bcv", x, matrix, axes=("batch", "seq", "vocab"), dtype=jnp.float32) * scale
    if softcap is not None:
        logits = softcap * jnp.tanh(logits / softcap)
    m = jnp.max(logits, axis=-1)
    p = jnp.exp(logits - m[..., None])
    total = jnp.sum(p, axis=-1)
    lse = jnp.log(total) + m
    # A comparison instead of a gather: it stays local where the vocabulary is split over devices.
    hit = jnp.arange(logits.shape[-1]) == targets[..., None]
    target_logit = jnp.sum(jnp.where(hit, logits, 0.0), axis=-1)
    right = (target_logit >= m) & (total < logits.shape[-1])  # logits that are all alike, as before any training, say nothing
    sums = tuple(jnp.sum(weights * each) for each in (lse - target_logit, jnp.square(lse), right))
    return sums, p / total[..., None], logits, lse, hit
