"""One line a weight: shape, logical axes, initialiser."""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from flax import nnx

from mnemax.sharding import Axes

if TYPE_CHECKING:
    from mnemax.configs.schema import ModelConfig


class Init:
    """Makes the weights of a model, all in float32.

    A weight remembers its logical `axes` (sharding, export) and how many leading axes are contracted with the input
    (`contract`: 0 for vectors, which are neither decayed nor orthogonalised).
    """

    def __init__(self, model: "ModelConfig", key: jax.Array):
        self.model = model
        self.rngs = nnx.Rngs(params=key)

    def matrix(
        self, shape: tuple[int, ...], axes: Axes, *, contract: int = 1, residual: bool = False, std: float | None = None
    ) -> nnx.Param:
        """A truncated-normal matrix; `residual` marks the projections that write to the residual stream."""
        if std is None:
            std = self._std(math.prod(shape[:contract]), residual)
        value = std * jax.random.truncated_normal(self.rngs.params(), -3, 3, shape, jnp.float32)
        return nnx.Param(value, axes=axes, contract=contract)

    def _std(self, fan_in: int, residual: bool) -> float:
        config = self.model.init
        std = config.std if config.kind == "normal" else fan_in**-0.5
        return std / math.sqrt(2 * len(self.model.layers)) if residual and config.depth_scaled else std

    def vector(self, shape: tuple[int, ...], axes: Axes, value: float = 0.0) -> nnx.Param:
        """A constant: a bias, a norm's scale, a gate."""
        return nnx.Param(jnp.full(shape, value, jnp.float32), axes=axes, contract=0)

    def sampled(self, shape: tuple[int, ...], axes: Axes, low: float, high: float, of: Callable = lambda u: u) -> nnx.Param:
        """`of` a uniform sample of [low, high): what is neither decayed nor orthogonalised, but does not begin alike everywhere."""
        sample = jax.random.uniform(self.rngs.params(), shape, jnp.float32, low, high)
        return nnx.Param(of(sample), axes=axes, contract=0)
