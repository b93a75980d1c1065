"""Full memory: every token is kept (Vaswani et al. 2017, arXiv 1706.03762)."""

from typing import ClassVar, Literal, override

import jax
import jax.numpy as jnp

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


class FullConfig(MemoryConfig):
    """Every token is kept: `capacity` entries a row."""

    kind: Literal["full"] = "full"
    plain_slots: ClassVar[bool] = True

    @override
    def build(self, entry: EntrySpec, init) -> "Full":
        return Full()

    @override
    def cache_bytes(self, batch: int, capacity: int, entry: EntrySpec) -> int:
        return batch * capacity * entry_bytes(entry)

    @override
    def keys_read(self, context: int) -> float:
        return context


class Full(Memory):
    """Slot i holds the token of row index i, so slots that are not yet written lie after every query and are never seen."""

    @override
    def init(self, batch: int, capacity: int, entry: EntrySpec) -> State:
        return empty_slots(batch, capacity, entry)

    @override
    def update(self, state: State, entry: Entry, place: Place, reader) -> tuple[State, Slots]:
        state = {
            name: jax.lax.dynamic_update_slice_in_dim(slots, entry[name].astype(slots.dtype), place.index[0], axis=1)
            for name, slots in jax.tree.map(laid_out_as, state, entry).items()
        }
        capacity = next(iter(state.values())).shape[1]
        return state, Slots(state, jnp.arange(capacity)[None])

    @override
    def view(self, entry: Entry, place: Place, reader) -> Slots:
        return Slots(entry, row_index(place), aligned=True)
