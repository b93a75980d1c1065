"""Merging over depth (MiniCache, arXiv 2405.14366): keys and values along a lower layer's directions, with lengths of their own.

With a the vector that the lower layer wrote for a token, leaf and head, and b this layer's, a query reads

    b' = (|b| / |a|) a        or b itself, where the token is kept whole

and the ratio of lengths is all that is stored of b'. A token is kept whole if its directions are more than `apart` from the lower
layer's (angle(a, b) over pi, averaged over heads and leaves) and fewer than `unmerged` of its document were kept whole before it.
"""

from typing import TYPE_CHECKING, Literal, override

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from mnemax import registry
from mnemax.configs.base import Fraction, NonNegativeInt
from mnemax.layers.memories import (
    Entry,
    EntrySpec,
    Memory,
    MemoryConfig,
    Place,
    Reader,
    Slots,
    State,
    empty_slots,
    entry_bytes,
    laid_out_as,
    row_index,
)
from mnemax.layers.memories.full import Full, FullConfig

if TYPE_CHECKING:
    from mnemax.configs.schema import AttentionConfig, ModelConfig

TINY = 1e-30  # added to squared lengths: a vector of zeros has length 1e-15 and a gradient, and is at right angles to every other


class DepthMergedConfig(MemoryConfig):
    """Lengths of keys and values, whose directions are a lower layer's; whole are the first tokens that point elsewhere."""

    kind: Literal["depth_merged"] = "depth_merged"
    of: str
    """The name that the lower layer writes; its memory is `full`."""
    unmerged: NonNegativeInt = 16
    """Tokens of a document that are kept whole at most."""
    apart: Fraction = 0.25
    """The angle over pi, averaged over heads, keys and values, above which a token is kept whole while there is room."""

    @property
    @override
    def below(self) -> str:
        return self.of

    @override
    def refuses_below(self, here: "AttentionConfig", below: "AttentionConfig", model: "ModelConfig") -> str | None:
        if not isinstance(below.memory, FullConfig):
            return f"is written by memory {registry.kind_of(type(below.memory))}, and memory depth_merged takes directions of full"
        mine, theirs = (
            {name: leaf.shape for name, leaf in attention.projection.entry(model).items()} for attention in (here, below)
        )
        if mine != theirs or any(len(shape) != 2 for shape in mine.values()):
            return f"has entries of shape {theirs} and this layer's projection {mine}: they must be equal, of heads and their width"
        for field in ("rope", "rotated"):
            ours, others = (getattr(attention.projection, field, None) for attention in (here, below))
            if ours != others:
                return f"has projection.{field} {others} and this layer {ours}: of keys rotated otherwise directions mean nothing"
        return None

    @override
    def build(self, entry: EntrySpec, init) -> "DepthMerged":
        return DepthMerged(self)

    @override
    def cache_bytes(self, batch: int, capacity: int, entry: EntrySpec) -> int:
        whole = min(self.unmerged, capacity) * (entry_bytes(entry) + 4)  # an int32 row index a slot
        return batch * (capacity * entry_bytes(ratio_spec(entry)) + whole)

    @override
    def keys_read(self, context: int) -> float:
        return context

    @override
    def read_bytes(self, context: int, entry: EntrySpec) -> float:
        below = FullConfig().read_bytes(context, entry)  # a second time: the lower layer's queries have read them once
        return below + self.cache_bytes(1, context, entry)


def ratio_spec(entry: EntrySpec) -> EntrySpec:
    """A number a head of each leaf."""
    return {name: jax.ShapeDtypeStruct(leaf.shape[:1], leaf.dtype) for name, leaf in entry.items()}


class DepthMerged(Memory):
    """State: every token's ratios, and the tokens that are whole with their row index; -1: empty.

    The n-th whole token of a document is in slot n. What is left of a document that has ended lies before the next one's
    beginning, where no query looks.
    """

    def __init__(self, config: DepthMergedConfig):
        self.unmerged, self.apart = config.unmerged, config.apart

    @override
    def init(self, batch: int, capacity: int, entry: EntrySpec) -> State:
        slots = min(self.unmerged, capacity)
        return {
            "ratio": empty_slots(batch, capacity, ratio_spec(entry)),
            "whole": empty_slots(batch, slots, entry),
            "index": jnp.full((batch, slots), -1, jnp.int32),
        }

    @override
    def view(self, entry: Entry, place: Place, reader: Reader) -> Slots:
        below = _below(reader).entry
        nothing = jnp.zeros_like(place.positions[:, 0])
        whole = self._whole(distance(entry, below), place, nothing)[0]
        return Slots(_read(whole, entry, merged(ratio(entry, below), below)), row_index(place), aligned=True)

    @override
    def update(self, state: State, entry: Entry, place: Place, reader: Reader) -> tuple[State, Slots]:
        below, ratios = _below(reader), ratio(entry, _below(reader).entry)
        old, index = jax.tree.map(laid_out_as, state["whole"], entry), laid_out_as(state["index"], place.positions)
        used = jnp.sum(index >= place.start[:, :1], axis=1)
        whole, rank = self._whole(distance(entry, below.entry), place, used)

        ratios, slots = Full().update(state["ratio"], ratios, place, reader)
        capacity, first = slots.index.shape[1], place.index[0]
        written = (jnp.arange(capacity) <= place.index[-1])[:, None]
        rows = merged({name: jnp.where(written, leaf, 0) for name, leaf in ratios.items()}, below.view.entries)
        rows = _put(rows, jnp.where(index < 0, capacity, index), old)
        # Of these tokens as they came, since the last of them may take the slots of what the first still see.
        now = _read(whole, entry, merged(ratio(entry, below.entry), below.entry))
        rows = {
            name: jax.lax.dynamic_update_slice_in_dim(leaf, now[name].astype(leaf.dtype), first, axis=1)
            for name, leaf in rows.items()
        }

        at = jnp.where(whole & (place.start == place.start[:, -1:]), rank, index.shape[1])
        tokens = {"whole": entry, "index": jnp.zeros_like(place.positions) + place.index}
        return {"ratio": ratios, **_put({"whole": old, "index": index}, at, tokens)}, Slots(rows, slots.index)

    def _whole(
        self, distance: Float[Array, "B T"], place: Place, used: Int[Array, " B"]
    ) -> tuple[Bool[Array, "B T"], Int[Array, "B T"]]:
        """Which tokens are kept whole, and in which slot; `used` are those that the first token's document has already."""
        wants = distance > self.apart
        before = jnp.cumsum(wants, axis=1) - wants
        start = jnp.maximum(place.start - place.index[0], 0)
        rank = before - jnp.take_along_axis(before, start, axis=1)
        rank += jnp.where(place.start == place.start[:, :1], used[:, None], 0)
        return wants & (rank < self.unmerged), rank


def _below(reader: Reader):
    assert reader.below is not None  # that it is written is checked when the configuration is read
    return reader.below


def _length(x: Float[Array, "... H"]) -> Float[Array, "..."]:
    return jnp.sqrt(jnp.sum(jnp.square(x.astype(jnp.float32)), axis=-1) + TINY)


def ratio(entry: Entry, below: Entry) -> Entry:
    """|b| / |a| of every token, leaf and head, [B, T, K] in the entry's dtype."""
    return {name: (_length(leaf) / _length(below[name])).astype(leaf.dtype) for name, leaf in entry.items()}


def merged(ratios: Entry, below: Entry) -> Entry:
    """(|b| / |a|) a."""
    return {name: leaf[..., None] * below[name] for name, leaf in ratios.items()}


def distance(entry: Entry, below: Entry) -> Float[Array, "B T"]:
    """angle(a, b) / pi, 0 to 1, averaged over heads and then over leaves."""

    def of(a: jax.Array, b: jax.Array) -> jax.Array:
        cosine = jnp.sum(a.astype(jnp.float32) * b.astype(jnp.float32), axis=-1) / (_length(a) * _length(b))
        return jnp.mean(jnp.arccos(jnp.clip(cosine, -1, 1)), axis=-1) / jnp.pi

    return jnp.mean(jnp.stack([of(below[name], leaf) for name, leaf in entry.items()]), axis=0)


def _read(whole: Bool[Array, "B T"], own: Entry, shared: Entry) -> Entry:
    return {name: jnp.where(whole[..., None, None], leaf, shared[name]) for name, leaf in own.items()}


def _put[Tree](slots: Tree, at: Int[Array, "B N"], tokens: Tree) -> Tree:
    """Slots [B, S, ...] with N tokens [B, N, ...] written at `at`; S: nowhere."""
    put = jax.vmap(lambda slots, at, tokens: slots.at[at].set(tokens.astype(slots.dtype), mode="drop"))
    return jax.tree.map(lambda slots, tokens: put(slots, at, tokens), slots, tokens)
