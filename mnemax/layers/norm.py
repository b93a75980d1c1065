"""RMSNorm (Zhang and Sennrich 2019, arXiv 1910.07467)."""

from typing import Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from mnemax.configs.base import Config, PositiveFloat
from mnemax.layers.param import Init
from mnemax.sharding import Axes, use


class NormConfig(Config):
    """RMSNorm and where a block applies it."""

    eps: PositiveFloat = 1e-6
    offset: Literal[0, 1] = 0
    """The scale is `offset + weight`: Gemma stores its scales around 0."""
    placement: Literal["pre", "post", "both"] = "pre"
    """Before each sub-layer (Llama), on its output before the residual sum (OLMo-2), or both (Gemma)."""


class RMSNorm(nnx.Module):
    """y = x / sqrt(mean(x^2) + eps) * (offset + scale) over the trailing axes that `scale` covers, computed in float32."""

    def __init__(self, shape: tuple[int, ...], axes: Axes, config: NormConfig, init: Init):
        self.scale = init.vector(shape, axes, value=1.0 - config.offset)
        self.eps = config.eps
        self.offset = config.offset

    def __call__(self, x: Float[Array, "*batch d"]) -> Float[Array, "*batch d"]:
        scale = use(self.scale, jnp.float32)
        return (unit_rms(x, self.eps, scale.ndim) * (self.offset + scale)).astype(x.dtype)


def unit_rms(x: Float[Array, "*batch d"], eps: float, axes: int = 1) -> Float[Array, "*batch d"]:
    """x / sqrt(mean(x^2) + eps) over the trailing axes, in float32: the norm without its scale."""
    f = x.astype(jnp.float32)
    return f * jax.lax.rsqrt(jnp.mean(f * f, axis=tuple(range(-axes, 0)), keepdims=True) + eps)
