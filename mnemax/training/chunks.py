"""Rows cut into chunks of positions, those that are asked for first: the other chunks' logits need not be made."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Shaped


def in_chunks(
    size: int, weights: Float[Array, "B T"], *rows: Shaped[Array, "B T ..."]
) -> tuple[Float[Array, "n B size"], *tuple[Shaped[Array, "n B size ..."], ...]]:
    """The weights and the rows, of any dtype, positions of weight 0 after all others of their row; zeros fill the last chunk.

    `size` is T where it is more. Gradients flow through the rows of three dimensions and through the weights.
    """
    T = weights.shape[1]
    size = min(size, T)
    count = -(-T // size)
    order = jnp.argsort(weights == 0, axis=1, stable=True) if count > 1 else None

    def cut(a: jax.Array) -> jax.Array:
        if order is not None:
            a = _pick(a, order) if a.ndim > 2 else jnp.take_along_axis(a, order, axis=1)
        if pad := count * size - T:
            a = jnp.pad(a, ((0, 0), (0, pad), *((0, 0),) * (a.ndim - 2)))
        return jnp.moveaxis(a.reshape(a.shape[0], count, size, *a.shape[2:]), 1, 0)

    return cut(weights), *(cut(a) for a in rows)


@jax.custom_vjp
def _pick(x, order):
    return jnp.take_along_axis(x, order[..., None], axis=1)


# The gradient of a permutation is the inverse one: a gather too, where differentiation would scatter.
_pick.defvjp(
    lambda x, order: (_pick(x, order), order),
    lambda order, g: (_pick(g, jnp.argsort(order, axis=1)), None),
)
