"""Who decides what is kept. One file a kind; this one holds the contract."""

from typing import TYPE_CHECKING

from flax import nnx
from jaxtyping import Array, Float

from mnemax.configs.base import Config
from mnemax.layers.memories import Entry, Place

if TYPE_CHECKING:
    from mnemax.configs.schema import ModelConfig
    from mnemax.layers.param import Init


class RetentionConfig(Config):
    """The base of every retention's configuration."""

    def build(self, model: "ModelConfig", init: "Init") -> "Retention":
        raise NotImplementedError


class Retention(nnx.Module):
    """Emits a retention a token and head: higher is kept."""

    def __call__(self, x: Float[Array, "B T D"], entry: Entry, place: Place) -> Float[Array, "B T K"]:
        raise NotImplementedError
