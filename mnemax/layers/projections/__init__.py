"""What a token writes, and how queries are made. One file a kind; this one holds the contract."""

from typing import TYPE_CHECKING, Any

import jax
from flax import nnx
from jaxtyping import Array, Float

from mnemax.configs.base import Config
from mnemax.kernels.attend import attend
from mnemax.kernels.mask import Mask
from mnemax.layers.memories import Entry, EntrySpec, Place

if TYPE_CHECKING:
    from mnemax.configs.schema import ModelConfig
    from mnemax.layers.param import Init


class ProjectionConfig(Config):
    """The base of every projection's configuration."""

    heads: int
    """Query heads, N."""

    def build(self, model: "ModelConfig", init: "Init", *, reads: bool) -> "Projection":
        """The module; `reads`: the layer reads another's memory, so it has no weights for entries."""
        raise NotImplementedError

    def entry(self, model: "ModelConfig") -> EntrySpec:
        """Shapes and dtypes of one token's entry, without [B, T]."""
        raise NotImplementedError

    def cannot_read(self, writer: "ProjectionConfig") -> str | None:
        """Why queries of this projection cannot read that one's entries; None where they can."""
        raise NotImplementedError

    def attention_width(self, model: "ModelConfig") -> tuple[int, int]:
        """Multiply-adds of one query with one key: (for its logits, for its values), summed over heads. For FLOPs."""
        raise NotImplementedError


class Projection(nnx.Module):
    """Makes queries and entries, attends over entries, and projects back to the residual stream."""

    scale: float
    softcap: float | None

    def query(self, x: Float[Array, "B T D"], place: Place) -> Any:
        """Queries [B, T, N, H], or a form of the projection's own."""
        raise NotImplementedError

    def entry(self, x: Float[Array, "B T D"], place: Place) -> Entry:
        """Exactly what is cached; every leaf [B, T, ...]."""
        raise NotImplementedError

    def expand(self, entries: Entry) -> tuple[Float[Array, "B S K H"], Float[Array, "B S K Hv"]]:
        """Keys and values of entries."""
        raise NotImplementedError

    def attend(
        self, query: Any, entries: Entry, mask: Mask, implementation: str
    ) -> tuple[Float[Array, "B T N Hv"], Float[Array, "B T N"]]:
        """Output and log-sum-exp of the queries over entries. A projection may know a cheaper form than expanding them."""
        k, v = self.expand(entries)
        scale, softcap = self.scale, self.softcap
        return attend(query, k, v, mask=mask, scale=scale, softcap=softcap, implementation=implementation)

    def output(self, out: Float[Array, "B T N Hv"], x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        """Back to the residual stream; `x` is the layer's input, for outputs that are gated by it."""
        raise NotImplementedError


def leaf(shape: tuple[int, ...], model: "ModelConfig") -> jax.ShapeDtypeStruct:
    """One leaf of an entry in the model's activation dtype."""
    return jax.ShapeDtypeStruct(shape, jax.numpy.dtype(model.dtype))
