"""What a token writes, and how queries are made. One file a kind; this one holds the contract."""

from typing import TYPE_CHECKING, Any, ClassVar, Literal

import jax
from flax import nnx
from jaxtyping import Array, Float, Int

from mnemax.configs.base import Config
from mnemax.kernels.attend import attend
from mnemax.kernels.mask import Mask
from mnemax.layers.memories import Entry, EntrySpec, Place

if TYPE_CHECKING:
    from mnemax.configs.schema import ModelConfig
    from mnemax.layers.param import Init

type Part = Literal["whole", "queries", "entries"]
"""What a layer has of a projection: all of it, queries alone (it reads another's memory), or entries alone (it only writes)."""


class ProjectionConfig(Config):
    """The base of every projection's configuration."""

    gates: ClassVar[frozenset[str]] = frozenset()
    """The gates among its entry's leaves."""
    gated: ClassVar[bool] = False
    """Whether it gates its output itself."""

    heads: int
    """Query heads, N."""

    @property
    def query_heads(self) -> int:
        """Heads that `attend` gives outputs of."""
        return self.heads

    @property
    def by_head(self) -> bool:
        """Whether every leaf of an entry has the same heads, each of which may then keep tokens of its own."""
        return True

    @property
    def unpaired(self) -> str | None:
        """Why an entry is no pair of a key and a value a head, from which alone all follows: those may be summed and averaged."""
        return None

    @property
    def remade(self) -> str | None:
        """Why keys and values are not read as they lie in the entry, which a memory that never attends would miss."""
        return None

    def build(self, model: "ModelConfig", init: "Init", *, part: Part) -> "Projection":
        """The module, with the weights of that part alone. A kind that cannot read its own entries is only ever built whole."""
        raise NotImplementedError

    def entry(self, model: "ModelConfig") -> EntrySpec:
        """Shapes and dtypes of one token's entry, without [B, T]."""
        raise NotImplementedError

    def tail(self, model: "ModelConfig", *, part: Part) -> EntrySpec:
        """What is remembered of the latest tokens beside the memory (short convolutions), without [B]."""
        return {}

    def cannot_read(self, writer: "ProjectionConfig") -> str | None:
        """Why queries of this projection cannot read that one's entries; None where they can."""
        raise NotImplementedError

    def unlike(self, writer: "ProjectionConfig", *fields: str) -> str | None:
        """The first of these fields that the writer of an entry has otherwise, as words; None where all are equal."""
        for field in fields:
            mine, theirs = getattr(self, field), getattr(writer, field)
            if mine != theirs:
                return f"{field} is {mine} here and {theirs} where it is written"
        return None

    def attention_width(self, model: "ModelConfig") -> tuple[int, int]:
        """Multiply-adds of one query with one key: (for its logits, for its values), summed over heads. For FLOPs."""
        raise NotImplementedError(f"{type(self).__name__} is not attended over slot by slot")


class Projection(nnx.Module):
    """Makes queries and entries, attends over entries, and projects back to the residual stream."""

    scale: float
    softcap: float | None
    part: Part = "whole"

    def __call__(self, x: Float[Array, "B T D"], place: Place, tail: Entry | None) -> tuple[Any, Entry | None, Entry | None]:
        """Queries, entries (None of what the part lacks), and the new tail. `tail` None: x is whole rows."""
        query = None if self.part == "entries" else self.query(x, place)
        return query, None if self.part == "queries" else self.entry(x, place), tail

    def query(self, x: Float[Array, "B T D"], place: Place) -> Any:
        """Queries [B, T, N, H], or a form of the projection's own."""
        raise NotImplementedError

    def entry(self, x: Float[Array, "B T D"], place: Place) -> Entry:
        """Exactly what is cached; every leaf [B, T, ...]."""
        raise NotImplementedError

    def plain(self, query: Any) -> Float[Array, "B T N H"]:
        """The queries as vectors, the scale of logits in them, for memories that are no set of slots."""
        return query * jax.numpy.asarray(self.scale, query.dtype)

    def expand(self, entries: Entry) -> tuple[Float[Array, "B S K H"], Float[Array, "B S K Hv"]]:
        """Keys and values of entries."""
        raise NotImplementedError

    def attend(
        self,
        query: Any,
        entries: Entry,
        mask: Mask,
        implementation: str,
        *,
        key_bias: Float[Array, "B S K"] | None = None,
        key_slope: Float[Array, "B S K"] | None = None,
        evict_at: Int[Array, "B S K"] | None = None,
    ) -> tuple[Float[Array, "B T N Hv"], Float[Array, "B T N"]]:
        """Output and log-sum-exp of the queries over entries. A projection may know a cheaper form than expanding them.

        `key_bias`, `key_slope` and `evict_at`, which a memory may give, are those of `kernels.attend`.
        """
        k, v = self.expand(entries)
        terms = {"key_bias": key_bias, "key_slope": key_slope, "evict_at": evict_at}
        scale, softcap = self.scale, self.softcap
        return attend(query, k, v, mask=mask, scale=scale, softcap=softcap, implementation=implementation, **terms)

    def output(self, out: Float[Array, "B T N Hv"], x: Float[Array, "B T D"], query: Any) -> Float[Array, "B T D"]:
        """Back to the residual stream; `x` is the layer's input, for outputs that are gated by it, `query` what `__call__` gave."""
        raise NotImplementedError


def leaf(shape: tuple[int, ...], model: "ModelConfig") -> jax.ShapeDtypeStruct:
    """One leaf of an entry in the model's activation dtype."""
    return jax.ShapeDtypeStruct(shape, jax.numpy.dtype(model.dtype))


def gate_spec(heads: int) -> jax.ShapeDtypeStruct:
    """One gate of an entry: a float32 scalar a head."""
    return jax.ShapeDtypeStruct((heads,), jax.numpy.float32)
