"""Chunked attention: a token sees its own chunk of the document (Liu et al. 2018, arXiv 1801.10198, section 4.2.4).

Chunk c holds the positions c * size to (c + 1) * size - 1. With p the position of a token, it reads the p mod size + 1 latest
tokens, so that `size` slots are enough. Llama 4 puts such layers between layers of full memory.
"""

from dataclasses import dataclass
from functools import partial
from typing import Literal, override

import jax
import jax.numpy as jnp

from mnemax.configs.base import PositiveInt
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
    laid_out_as,
    row_index,
)


class ChunkConfig(MemoryConfig):
    """The tokens of the present chunk of `size` positions."""

    kind: Literal["chunk"] = "chunk"
    size: PositiveInt

    @override
    def build(self, entry: EntrySpec, init) -> "Chunk":
        return Chunk(self.size)

    @override
    def cache_bytes(self, batch: int, capacity: int, entry: EntrySpec) -> int:
        return batch * min(self.size, capacity) * (entry_bytes(entry) + 4)  # an int32 row index a slot

    @override
    def keys_read(self, context: int) -> float:
        return (context - 1) % self.size + 1


@partial(jax.tree_util.register_dataclass, data_fields=["slots"], meta_fields=["size"])
@dataclass(frozen=True)
class ChunkView:
    """Slots that are read as if a document began where the query's chunk does."""

    slots: Slots
    size: int

    def read(self, query, projection, place: Place, implementation: str):
        return self.slots.read(query, projection, Place(place.index, place.positions % self.size), implementation)


class Chunk(Memory):
    """State: a ring of `size` entries, and the row index of the token in each; -1: empty."""

    def __init__(self, size: int):
        self.size = size

    @override
    def init(self, batch: int, capacity: int, entry: EntrySpec) -> State:
        slots = min(self.size, capacity)
        return {"entries": empty_slots(batch, slots, entry), "index": jnp.full((batch, slots), -1, jnp.int32)}

    @override
    def update(self, state: State, entry: Entry, place: Place, reader) -> tuple[State, ChunkView]:
        index = laid_out_as(jnp.broadcast_to(row_index(place), place.positions.shape), place.positions)
        now = {"entries": entry, "index": index}
        old = jax.tree.map(laid_out_as, state, now)
        ring = old["index"].shape[1]
        at = place.index[-ring:] % ring
        new = jax.tree.map(lambda o, n: o.at[:, at].set(n[:, -ring:].astype(o.dtype)), old, now)
        # The first of several tokens may see what the last of them overwrite, so all read the old slots and their own entries.
        seen = new if index.shape[1] == 1 else jax.tree.map(lambda o, n: jnp.concatenate([o, n.astype(o.dtype)], 1), old, now)
        return new, ChunkView(Slots(seen["entries"], seen["index"]), self.size)

    @override
    def view(self, entry: Entry, place: Place, reader) -> ChunkView:
        return ChunkView(Slots(entry, row_index(place), window=self.size, aligned=True), self.size)
