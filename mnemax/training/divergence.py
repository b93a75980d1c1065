"""Kullback-Leibler divergence between the next-token distributions of two residual streams, without their logits.

As the cross-entropy does, it takes one chunk of positions at a time, and none that are not asked for; the backward pass makes each
chunk's logits again.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from mnemax.sharding import einsum
from mnemax.training.chunks import in_chunks


def divergence(
    teacher: Float[Array, "B T D"],
    student: Float[Array, "B T D"],
    matrix: Float[Array, "D V"],
    weights: Float[Array, "B T"],
    *,
    scale: float = 1.0,
    softcap: float | None = None,
    chunk: int = 512,
) -> Float[Array, ""]:
    """The weighted sum over positions of KL(teacher || student) in nats, float32; both are read out with one matrix.

    Args:
        scale, softcap, chunk: as in `cross_entropy`.
    """

    def log_probabilities(x: jax.Array) -> Float[Array, "B C V"]:
        logits = einsum("bcd,dv->bcv", x, matrix, axes=("batch", "seq", "vocab"), dtype=jnp.float32) * scale
        return jax.nn.log_softmax(logits if softcap is None else softcap * jnp.tanh(logits / softcap))

    @jax.checkpoint
    def add(total: jax.Array, chunk) -> tuple[jax.Array, None]:
        def some(weights, teacher, student):
            p, q = log_probabilities(teacher), log_probabilities(student)
            return jnp.sum(weights * jnp.sum(jnp.exp(p) * (p - q), axis=-1))

        return total + jax.lax.cond(jnp.any(chunk[0]), some, lambda *_: jnp.float32(0), *chunk), None

    return jax.lax.scan(add, jnp.float32(0), in_chunks(chunk, weights, teacher, student))[0]
