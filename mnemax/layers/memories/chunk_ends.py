"""The last token of every chunk, and the latest tokens: what Attamba keeps (Akhauri et al. 2024, arXiv 2411.17685).

It makes sense where a chunk's last token speaks for the chunk, as under the projection `attamba`. A chunk ends at the positions p
of a document with (p + offset) mod chunk = chunk - 1; the document's first token counts as such an end.
"""

from typing import Literal, Self, override

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int
from pydantic import model_validator

from mnemax.configs.base import NonNegativeInt, PositiveInt
from mnemax.kernels.mask import NEVER
from mnemax.layers.memories import (
    Entry,
    EntrySpec,
    Memory,
    MemoryConfig,
    Place,
    Slots,
    State,
    empty_slots,
    entry_bytes,
    exceeding,
    laid_out_as,
    row_index,
)


class ChunkEndsConfig(MemoryConfig):
    """The last token of every chunk for good, and all of the latest `lead` tokens beside the present one."""

    kind: Literal["chunk_ends"] = "chunk_ends"
    chunk: PositiveInt
    lead: NonNegativeInt
    offset: NonNegativeInt = 0
    """How many tokens earlier the first chunk ends. Give each layer its own: ends then fall on other tokens (cyclic boundaries)."""

    @model_validator(mode="after")
    def _within_a_chunk(self) -> Self:
        if self.offset >= self.chunk:
            raise ValueError(f"offset ({self.offset}) is not below chunk ({self.chunk})")
        return self

    @override
    def refuses(self, attention) -> str | None:
        if not attention.projection.by_head:
            kind = getattr(attention.projection, "kind", "?")
            return f"drops tokens a key head apart, and projection {kind} writes what belongs to no single one"
        theirs = tuple(getattr(attention.projection, field, None) for field in ("chunk", "offset"))
        if theirs != (None, None) and theirs != (self.chunk, self.offset):
            return f"has (chunk, offset) = {(self.chunk, self.offset)}, and projection {theirs}: they must agree"
        return None

    @override
    def refuses_length(self, longest: int) -> str | None:
        return exceeding(self.chunk, longest)

    @override
    def build(self, entry: EntrySpec, init) -> "ChunkEnds":
        return ChunkEnds(self)

    def ends(self, tokens: int) -> int:
        """Slots for the ends of so many tokens."""
        return 1 + (tokens + self.offset) // self.chunk

    @override
    def cache_bytes(self, batch: int, capacity: int, entry: EntrySpec) -> int:
        slots = self.ends(capacity) + min(self.lead + 1, capacity)
        return batch * slots * (entry_bytes(entry) + 4)  # an int32 row index a slot

    @override
    def keys_read(self, context: int) -> float:
        return min(context, self.ends(context) + self.lead + 1)


class ChunkEnds(Memory):
    """State: slots of ends, and a ring of the latest tokens; an end stands among the ends only, so that nothing is read twice."""

    def __init__(self, config: ChunkEndsConfig):
        self.config = config

    @override
    def init(self, batch: int, capacity: int, entry: EntrySpec) -> State:
        def slots(count: int) -> State:
            return {"entries": empty_slots(batch, count, entry), "index": jnp.full((batch, count), -1, jnp.int32)}

        return {"ends": slots(self.config.ends(capacity)), "ring": slots(min(self.config.lead + 1, capacity))}

    @override
    def view(self, entry: Entry, place: Place, reader) -> Slots:
        index = jnp.broadcast_to(row_index(place), place.positions.shape)
        return Slots(entry, row_index(place), aligned=True, evict_at=self._evict_at(entry, index, self._is_end(place)))

    @override
    def update(self, state: State, entry: Entry, place: Place, reader) -> tuple[State, Slots]:
        index = laid_out_as(jnp.broadcast_to(row_index(place), place.positions.shape), place.positions)
        now = {"entries": entry, "index": index}
        old = {group: jax.tree.map(laid_out_as, slots, now) for group, slots in state.items()}
        is_end = self._is_end(place)
        new = {"ends": self._with_ends(old["ends"], now, is_end, place), "ring": self._with_latest(old["ring"], now, is_end, place)}
        # The first of several tokens still see what the last of them overwrite: they read the old slots beside their own entries.
        seen = [*new.values()] if index.shape[1] == 1 else [*old.values(), now]
        slots = jax.tree.map(lambda *leaves: jnp.concatenate([a.astype(leaves[0].dtype) for a in leaves], axis=1), *seen)
        stays = [
            jnp.ones_like(seen[0]["index"], bool),
            jnp.zeros_like(seen[1]["index"], bool),
            *([is_end] if len(seen) == 3 else []),
        ]
        return new, Slots(**slots, evict_at=self._evict_at(slots["entries"], slots["index"], jnp.concatenate(stays, axis=1)))

    def _is_end(self, place: Place) -> Bool[Array, "B T"]:
        c, p = self.config, place.positions
        # Below 0 the document has not begun by this clock.
        return (p == 0) | ((p > 0) & ((p + c.offset) % c.chunk == c.chunk - 1))

    def _evict_at(self, entries: Entry, index: Int[Array, "B S"], is_end: Bool[Array, "B S"]) -> Int[Array, "B S K"]:
        """Ends stay; others leave with the ring."""
        by_head = jnp.zeros_like(next(iter(entries.values()))[..., 0], jnp.int32)
        return by_head + jnp.where(is_end, NEVER, index + self.config.lead + 1)[..., None]

    def _with_ends(self, ends: State, now: State, is_end: Bool[Array, "B T"], place: Place) -> State:
        """The document's first token in slot 0, the end of its n-th chunk in slot n. Those of ended documents are seen no more."""
        c, p = self.config, place.positions
        number = jnp.where(p == 0, 0, 1 + (p + c.offset) // c.chunk)
        of_last = is_end & (place.start == place.start[:, -1:])
        at = jnp.where(of_last, number, ends["index"].shape[1])
        put = jax.vmap(lambda old, at, new: old.at[at].set(new.astype(old.dtype), mode="drop"))
        return jax.tree.map(lambda old, new: put(old, at, new), ends, now)

    def _with_latest(self, ring: State, now: State, is_end: Bool[Array, "B T"], place: Place) -> State:
        size = ring["index"].shape[1]
        at = place.index[-size:] % size
        now = now | {"index": jnp.where(is_end, -1, now["index"])}
        return jax.tree.map(lambda old, new: old.at[:, at].set(new[:, -size:].astype(old.dtype)), ring, now)
