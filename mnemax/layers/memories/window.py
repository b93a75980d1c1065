"""Sliding window with sinks: the latest tokens, and the first ones of the document.

Window: Beltagy et al. 2020 (arXiv 2004.05150), as in Mistral and Gemma. Sinks: Xiao et al. 2023 (arXiv 2309.17453), here at
their own positions rather than re-numbered.
"""

from typing import ClassVar, Literal, override

import jax
import jax.numpy as jnp

from mnemax.configs.base import NonNegativeInt, PositiveInt
from mnemax.layers.memories import (
    Entry,
    EntrySpec,
    Memory,
    MemoryConfig,
    Place,
    Slots,
    State,
    beside,
    empty_slots,
    entry_bytes,
    laid_out_as,
    row_index,
)


class WindowConfig(MemoryConfig):
    """The latest `size` tokens, the present one counted, and the document's first `sinks`."""

    kind: Literal["window"] = "window"
    plain_slots: ClassVar[bool] = True
    size: PositiveInt
    sinks: NonNegativeInt = 0

    @override
    def build(self, entry: EntrySpec, init) -> "Window":
        return Window(self.size, self.sinks)

    @override
    def cache_bytes(self, batch: int, capacity: int, entry: EntrySpec) -> int:
        slots = self.sinks + min(self.size, capacity)
        return batch * slots * (entry_bytes(entry) + 4)  # an int32 row index a slot

    @override
    def keys_read(self, context: int) -> float:
        return min(context, self.size + self.sinks)


class Window(Memory):
    """State: `sinks` slots, then a ring of `size`. A sink token stands in its sink slot only, so that nothing is read twice."""

    def __init__(self, size: int, sinks: int):
        self.size = size
        self.sinks = sinks

    @override
    def init(self, batch: int, capacity: int, entry: EntrySpec) -> State:
        slots = self.sinks + min(self.size, capacity)
        return {"entries": empty_slots(batch, slots, entry), "index": jnp.full((batch, slots), -1, jnp.int32)}

    @override
    def update(self, state: State, entry: Entry, place: Place, reader) -> tuple[State, Slots]:
        batch, length = place.positions.shape
        index = laid_out_as(jnp.broadcast_to(row_index(place), (batch, length)), place.positions)
        state = {
            "entries": jax.tree.map(laid_out_as, state["entries"], entry),
            "index": laid_out_as(state["index"], index),
        }
        new = self._write_ring(state, entry, index, place)
        if self.sinks:
            new = self._write_sinks(new, entry, index, place)
        if length == 1:
            return new, self._slots(new["entries"], new["index"])
        # The ring no longer holds what the first of several tokens see: they read the old slots beside their own entries.
        return new, self._slots(beside(state["entries"], entry), beside(state["index"], index))

    @override
    def view(self, entry: Entry, place: Place, reader) -> Slots:
        return Slots(entry, row_index(place), self.size, self.sinks, aligned=True)

    def _slots(self, entries: Entry, index: jax.Array) -> Slots:
        return Slots(entries, index, self.size, self.sinks)

    def _write_ring(self, state: State, entry: Entry, index: jax.Array, place: Place) -> State:
        ring = state["index"].shape[1] - self.sinks
        kept = min(index.shape[1], ring)
        slots = self.sinks + place.index[-kept:] % ring
        index = jnp.where(place.positions < self.sinks, -1, index)
        write = lambda old, now: old.at[:, slots].set(now[:, -kept:].astype(old.dtype))  # noqa: E731
        return {"entries": jax.tree.map(write, state["entries"], entry), "index": write(state["index"], index)}

    def _write_sinks(self, state: State, entry: Entry, index: jax.Array, place: Place) -> State:
        # [B, sinks, T]: which token is the document's j-th; of several documents in this call, the last one counts.
        hit = place.positions[:, None, :] == jnp.arange(self.sinks)[None, :, None]
        length = index.shape[1]
        last = length - 1 - jnp.argmax(hit[..., ::-1], axis=-1)  # [B, sinks]
        found = hit.any(axis=-1)

        def write(old, now):
            lead = (slice(None), slice(0, self.sinks))
            shape = (*last.shape, *(1,) * (now.ndim - 2))
            chosen = jnp.take_along_axis(now, last.reshape(shape), axis=1).astype(old.dtype)
            return old.at[lead].set(jnp.where(found.reshape(shape), chosen, old[lead]))

        return {"entries": jax.tree.map(write, state["entries"], entry), "index": write(state["index"], index)}
