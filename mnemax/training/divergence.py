"""Kullback-Leibler divergence between the next-token distributions of two residual streams, without their logits.

As the cross-entropy does, it takes one chunk of positions at a time; the backward pass makes each chunk's logits again.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from mnemax.sharding import einsum


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
    length = teacher.shape[1]
    chunk = min(chunk, length)
    turns = -(-length // chunk)

    def by_chunk(a: jax.Array) -> jax.Array:
        padded = jnp.pad(a, ((0, 0), (0, turns * chunk - length), *((0, 0),) * (a.ndim - 2)))
        return jnp.moveaxis(padded.reshape(a.shape[0], turns, chunk, *a.shape[2:]), 1, 0)

    def log_probabilities(x: jax.Array) -> Float[Array, "B C V"]:
        logits = einsum("bcd,dv->bcv", x, matrix, axes=("batch", "seq", "vocab"), dtype=jnp.float32) * scale
        return jax.nn.log_softmax(logits if softcap is None else softcap * jnp.tanh(logits / softcap))

    @jax.checkpoint
    def add(total: jax.Array, parts) -> tuple[jax.Array, None]:
        teacher, student, weights = parts
        p, q = log_probabilities(teacher), log_probabilities(student)
        return total + jnp.sum(weights * jnp.sum(jnp.exp(p) * (p - q), axis=-1)), None

    return jax.lax.scan(add, jnp.float32(0), tuple(by_chunk(a) for a in (teacher, student, weights)))[0]
