"""The feed-forward half of a block. One file a kind; this one holds the contract."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

import jax
from flax import nnx
from jaxtyping import Array, Float

from mnemax.configs.base import Config

if TYPE_CHECKING:
    from mnemax.configs.schema import ModelConfig
    from mnemax.layers.param import Init

type Aux = dict[str, jax.Array]
"""Scalars by name that a layer adds to the loss or reports (a router's balance, a gate's capacity); summed over layers."""

Activation = Literal["silu", "gelu", "gelu_tanh", "relu", "relu2"]


def add_aux(a: Aux, b: Aux) -> Aux:
    """Sums auxiliary scalars by name."""
    return {**a, **b, **{name: a[name] + b[name] for name in a.keys() & b.keys()}}


class FeedForwardConfig(Config):
    """The base of every feed-forward's configuration."""

    def build(self, model: "ModelConfig", init: "Init") -> "FeedForward":
        raise NotImplementedError


class FeedForward(nnx.Module):
    """Maps each token on its own."""

    def __call__(self, x: Float[Array, "B T D"]) -> tuple[Float[Array, "B T D"], Aux]:
        raise NotImplementedError


def activation(name: Activation) -> Callable[[jax.Array], jax.Array]:
    """The function of that name; `gelu` is the exact one, `gelu_tanh` its approximation, `relu2` the squared ReLU."""
    match name:
        case "silu":
            return jax.nn.silu
        case "gelu":
            return lambda x: jax.nn.gelu(x, approximate=False)
        case "gelu_tanh":
            return lambda x: jax.nn.gelu(x, approximate=True)
        case "relu":
            return jax.nn.relu
        case "relu2":
            return lambda x: jax.numpy.square(jax.nn.relu(x))
