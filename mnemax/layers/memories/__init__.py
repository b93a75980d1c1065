"""What a layer keeps of what was written, and how it is read. One file a kind; this one holds what they share."""

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Int

from mnemax.configs.base import Config
from mnemax.kernels.mask import Mask
from mnemax.sharding import on_explicit_mesh

if TYPE_CHECKING:
    from mnemax.configs.schema import AttentionConfig, ModelConfig
    from mnemax.layers.attention import Published
    from mnemax.layers.param import Init
    from mnemax.layers.projections import Projection, ProjectionConfig
    from mnemax.layers.retention import Retention

type Entry = dict[str, jax.Array]
"""What a token writes: every leaf [B, T, ...]. A leaf [B, T, K] of one scalar a head is a gate: it says how the token is kept."""

type EntrySpec = dict[str, jax.ShapeDtypeStruct]
"""One token's entry, without the leading [B, T]."""

type State = Any
"""A pytree of arrays of fixed shapes: its bytes are the decode memory."""


@partial(jax.tree_util.register_dataclass, data_fields=["index", "positions"], meta_fields=[])
@dataclass(frozen=True)
class Place:
    """Where the tokens of this call stand.

    Attributes:
        index: index of each token in its row, counted from the row's beginning (before this call, too).
        positions: position of each token in its document. A document begins at `index - positions`.
    """

    index: Int[Array, " T"]
    positions: Int[Array, "B T"]

    @property
    def start(self) -> Int[Array, "B T"]:
        return self.index - self.positions

    @property
    def last(self) -> "Place":
        """Where the last of the tokens stands."""
        return Place(self.index[-1:], self.positions[:, -1:])


@dataclass(frozen=True)
class Reader:
    """Who reads what these tokens write: for memories that decide by attention what to keep, or lean on another layer.

    Attributes:
        query: the queries of these tokens, in the projection's form.
        projection: how they attend.
        retention: the layer's retention, None where it has none.
        implementation: of `attend`.
        below: what the layer that the memory's configuration names (`below`) has published, None where it names none.
    """

    query: Any
    projection: "Projection"
    retention: "Retention | None"
    implementation: str
    below: "Published | None" = None


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["entries", "index", "bias", "slope", "evict_at"],
    meta_fields=["window", "sinks", "aligned", "strict"],
)
@dataclass(frozen=True)
class Slots:
    """A set of slots to read: the view that most memories give.

    Attributes:
        entries: what the slots hold, each leaf [B, S, ...].
        index: row index of the token in each slot, [B or 1, S] or a head apart [B, S, K]; negative: empty.
        window, sinks, aligned, strict: as in `Mask`.
        bias, slope, evict_at: as in `kernels.attend`.
    """

    entries: Entry
    index: Int[Array, "B_or_1 S"] | Int[Array, "B S K"]
    window: int | None = None
    sinks: int = 0
    aligned: bool = False
    bias: Float[Array, "B S K"] | None = None
    slope: Float[Array, "B S K"] | None = None
    evict_at: Int[Array, "B S K"] | None = None
    strict: bool = False

    def read(
        self, query: Any, projection: "Projection", place: Place, implementation: str
    ) -> tuple[Float[Array, "B T N Hv"], Float[Array, "B T N"]]:
        """Attention over the slots: output and log-sum-exp. A memory that is no slot set gives a view with its own `read`."""
        mask = Mask(place.index, place.start, self.index, self.window, self.sinks, self.aligned, strict=self.strict)
        terms = {"key_bias": self.bias, "key_slope": self.slope, "evict_at": self.evict_at}
        given = {name: term for name, term in terms.items() if term is not None}  # not every projection knows of terms
        return projection.attend(query, self.entries, mask, implementation, **given)


class MemoryConfig(Config):
    """The base of every memory's configuration."""

    takes: ClassVar[frozenset[str]] = frozenset()
    """Gates that the memory makes use of; an attention whose projection or retention makes others is refused."""
    needs: ClassVar[frozenset[str]] = frozenset()
    """Gates that it cannot do without."""
    normalised: ClassVar[bool] = True
    """Whether it is read by a softmax, which has a log-sum-exp."""
    plain_slots: ClassVar[bool] = False
    """Whether its view is `Slots` that follow from the entries alone, so that a lower layer's queries may read it, too."""
    any_query: ClassVar[bool] = True
    """Whether its view may be read by the last token's query alone; if not, by as many queries as tokens were written."""

    @property
    def below(self) -> str | None:
        """The name, its field `of`, that a lower layer writes and this memory keeps its tokens by; None: it needs no other."""
        return None

    def build(self, entry: EntrySpec, init: "Init") -> "Memory":
        """The memory for entries of this shape; most have no weights."""
        raise NotImplementedError

    def cache_bytes(self, batch: int, capacity: int, entry: EntrySpec) -> int:
        """Bytes of the decode state of one layer, by formula."""
        raise NotImplementedError

    def keys_read(self, context: int) -> float:
        """Entries that a query reads after `context` tokens, itself counted; for FLOPs and bytes a step."""
        raise NotImplementedError

    def read_bytes(self, context: int, entry: EntrySpec) -> float:
        """Bytes that a decode step reads of one row's state."""
        return self.keys_read(context) * entry_bytes(entry)

    def flops(self, context: int, projection: "ProjectionConfig", model: "ModelConfig") -> float:
        """FLOPs of a token's writing and reading after `context` tokens, itself counted."""
        return 2.0 * self.keys_read(context) * sum(projection.attention_width(model))

    def refuses(self, attention: "AttentionConfig") -> str | None:
        """Why this memory cannot stand in this attention; None where it can."""
        return None

    def refuses_below(self, here: "AttentionConfig", below: "AttentionConfig", model: "ModelConfig") -> str | None:
        """Why this memory cannot keep tokens by what the layer `below` writes, as what is to be said of that; None where it can."""
        return None

    def refuses_length(self, longest: int) -> str | None:
        """Why this memory cannot stand in a model of at most `longest` tokens (`max_length`); None where it can."""
        return None


class Memory(nnx.Module):
    """Keeps entries. State goes in and comes out as a pytree; a memory holds weights at most."""

    def init(self, batch: int, capacity: int, entry: EntrySpec) -> State:
        """The empty state, for rows of at most `capacity` tokens."""
        raise NotImplementedError

    def update(self, state: State, entry: Entry, place: Place, reader: Reader) -> tuple[State, Any]:
        """Writes these tokens' entries; returns the new state and the view that these tokens read, each no further than itself."""
        raise NotImplementedError

    def view(self, entry: Entry, place: Place, reader: Reader) -> Any:
        """What whole rows read, nothing being written before: the parallel form. Default: the definition, `update` from empty."""
        batch, length = next(iter(entry.values())).shape[:2]
        spec = {name: jax.ShapeDtypeStruct(leaf.shape[2:], leaf.dtype) for name, leaf in entry.items()}
        return self.update(self.init(batch, length, spec), entry, place, reader)[1]


def entry_bytes(entry: EntrySpec) -> int:
    """Bytes of one token's entry."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in entry.values())


def exceeding(chunk: int, longest: int) -> str | None:
    """Why chunks of this length cannot be: no row fills one."""
    return f"chunk ({chunk}) exceeds model.max_length ({longest})" if chunk > longest else None


def empty_slots(batch: int, slots: int, entry: EntrySpec) -> Entry:
    """Zeroed slots, each leaf [B, slots, ...], in the dtype of the entry."""
    return {name: jnp.zeros((batch, slots, *leaf.shape), leaf.dtype) for name, leaf in entry.items()}


def beside[T](slots: T, written: T) -> T:
    """Slots [B, S, ...] and after them what is written [B, T, ...], leaf by leaf in the dtype of the slots."""
    return jax.tree.map(lambda old, now: jnp.concatenate([old, now.astype(old.dtype)], axis=1), slots, written)


def laid_out_as(slots: jax.Array, written: jax.Array) -> jax.Array:
    """Slots [B, S, ...] split over an Explicit mesh as what is written to them [B, T, ...]; the slots' own axis stays whole."""
    if not on_explicit_mesh():
        return slots
    batch, _, *rest = jax.typeof(written).sharding.spec
    return jax.sharding.reshard(slots, P(batch, None, *rest))


def row_index(place: Place) -> Int[Array, "1 T"]:
    """The index of each token as slots carry it."""
    return place.index[None]
