"""Products with weights: the one place where a weight is cast, gathered and multiplied, and where its gradient is made."""

from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx

from mnemax.sharding import Axes, einsum, gathered, on_cpu

ROWS = 8  # fewest rows of a bfloat16 product that XLA's CPU backend does natively; for fewer it converts the whole weight


def linear(equation: str, x: jax.Array, weight: nnx.Param, *, axes: Axes, dtype=None) -> jax.Array:
    """einsum(equation, x, weight) in x's dtype, laid out by `axes`.

    The weight is gathered over `fsdp` in both passes rather than kept; its gradient is accumulated in float32 and left split over
    `fsdp`, so that the sum over devices is a reduce-scatter.

    Args:
        equation: of x [B, T, ...] and the weight, e.g. "btd,dnh->btnh"; no letter is in only one operand and not in the result.
        dtype: of the result; default: x's.
    """
    B, T = x.shape[:2]
    few = x.dtype == jnp.bfloat16 and B * T < ROWS and on_cpu()
    if few:
        x = jnp.pad(x, ((0, 0), (0, -(-ROWS // B) - T), *((0, 0),) * (x.ndim - 2)))
    y = _linear(equation, axes, weight.axes, dtype, x, weight[...])
    return y[:, :T] if few else y


def _product(equation: str, axes: Axes, weight_axes: Axes, dtype, x: jax.Array, w: jax.Array) -> jax.Array:
    return einsum(equation, x, gathered(w, x.dtype, weight_axes), axes=axes, dtype=dtype)


_linear = partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2, 3))(_product)


def _forward(equation: str, axes: Axes, weight_axes: Axes, dtype, x: jax.Array, w: jax.Array):
    # Not by way of `_linear`: a checkpoint policy does not see the products inside of a custom_vjp.
    return _product(equation, axes, weight_axes, dtype, x, w), (x, w)


def _backward(equation: str, axes: Axes, weight_axes: Axes, dtype, saved, g: jax.Array):
    x, w = saved
    g = g.astype(x.dtype)
    operands, y = equation.split("->")
    of_x, of_w = operands.split(",")
    names = dict(zip(of_w, weight_axes, strict=True)) | dict(zip(y, axes, strict=True))
    x_axes = tuple("residual" if names[letter] == "embed" else names[letter] for letter in of_x)
    dx = einsum(f"{y},{of_w}->{of_x}", g, gathered(w, g.dtype, weight_axes), axes=x_axes)
    dw = einsum(f"{of_x},{y}->{of_w}", jax.lax.optimization_barrier(x), g, axes=weight_axes, dtype=jnp.float32)
    return dx, dw.astype(w.dtype)


_linear.defvjp(_forward, _backward)
