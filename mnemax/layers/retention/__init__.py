"""Who decides what is kept. One file a kind; this one holds the contract."""

from typing import TYPE_CHECKING, ClassVar

from flax import nnx
from jaxtyping import Array, Float

from mnemax.configs.base import Config
from mnemax.layers.memories import Entry, EntrySpec, Place

if TYPE_CHECKING:
    from mnemax.configs.schema import ModelConfig
    from mnemax.layers.param import Init
    from mnemax.layers.projections import ProjectionConfig


class RetentionConfig(Config):
    """The base of every retention's configuration."""

    gates: ClassVar[frozenset[str]] = frozenset()
    """The gates that it makes: leaves [B, T, K] that join the entry."""

    def build(self, model: "ModelConfig", projection: "ProjectionConfig", init: "Init") -> "Retention":
        raise NotImplementedError

    def entry(self, model: "ModelConfig", projection: "ProjectionConfig") -> EntrySpec:
        """Shapes and dtypes of one token's gates, without [B, T]."""
        return {}


class Retention(nnx.Module):
    """Says how each token is to be kept."""

    def __call__(self, x: Float[Array, "B T D"], entry: Entry, place: Place) -> Entry:
        """The gates of these tokens, each [B, T, K]; `entry` is what the projection made."""
        return {}
