"""Key-value means (KVM, arXiv 2605.09877): a window of chunks, and before it slots that sum what is alike.

A chunk that leaves the window is folded into the slots: its most novel tokens become slots of their own, as many as the schedule
allows, and each of the others is added to the slot that its key is most like. A query reads slots and window in one softmax.

Chunks are counted from the beginning of each document. Of any `chunk` tokens in a row at most one begins a chunk, so that a walk in
blocks of that many tokens folds at most once a block and row, wherever documents begin and however a row is cut into calls.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self, override

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int
from pydantic import Field, model_validator

from mnemax.configs.base import Config, NonNegativeInt, PositiveFloat, PositiveInt
from mnemax.errors import UserError
from mnemax.kernels import means
from mnemax.layers.means import Choice, KeyValueMeans, Leaving, blocks, chunk_of, warmed
from mnemax.layers.memories import (
    Entry,
    EntrySpec,
    Memory,
    MemoryConfig,
    Place,
    State,
    empty_slots,
    entry_bytes,
    exceeding,
    laid_out_as,
)
from mnemax.sharding import use

if TYPE_CHECKING:
    from mnemax.configs.schema import AttentionConfig, ModelConfig
    from mnemax.layers.param import Init
    from mnemax.layers.projections import ProjectionConfig

EPS = 1e-5


class FixedGrowth(Config):
    """Always `slots`."""

    kind: Literal["fixed"] = "fixed"
    slots: PositiveInt

    def slots_for(self, tokens: int) -> int:
        return self.slots


class PowerGrowth(Config):
    """floor(factor * tokens^power) slots, `least` at the least: prefill in O(T^(1 + power))."""

    kind: Literal["power"] = "power"
    factor: PositiveFloat
    power: Annotated[float, Field(gt=0, le=1)]
    least: PositiveInt = 1

    def slots_for(self, tokens: int) -> int:
        return max(self.least, math.floor(self.factor * tokens**self.power))


class SaturatingGrowth(Config):
    """floor(slots * tokens / (slots + tokens)): a slot a token at first, never more than `slots`."""

    kind: Literal["saturating"] = "saturating"
    slots: PositiveInt

    def slots_for(self, tokens: int) -> int:
        return self.slots * tokens // (self.slots + tokens)


class KVMConfig(MemoryConfig):
    """Key-value means: slots that sum keys and values, by a schedule, and a window of whole chunks."""

    takes: ClassVar[frozenset[str]] = frozenset({"merge"})
    any_query: ClassVar[bool] = False

    kind: Literal["kvm"] = "kvm"
    chunk: PositiveInt = 256
    """Tokens that leave the window together."""
    window_chunks: PositiveInt = 2
    """Chunks of the window, the present one counted."""
    growth: Annotated[FixedGrowth | PowerGrowth | SaturatingGrowth, Field(discriminator="kind")] = FixedGrowth(slots=256)
    """How many slots a number of tokens may have. The state begins as the first chunk, a slot a token, and never shrinks."""
    sinks: NonNegativeInt = 1
    """Slots of the document's first tokens, which nothing is added to."""
    rotated: NonNegativeInt
    """Leading channels of a key that the projection rotates (rope.fraction of them): zero in the keys of slots."""
    head_temperatures: bool = True
    """A learned factor a head on the keys of the slots, and one on those of the window."""
    value_norm: bool = True
    """A slot's value has the length of the value that began it; false: the sum is read as it is."""
    gate_appends: bool = False
    """The gate also weighs the tokens that become slots (not those of the first chunk)."""
    remask: bool = False
    """The rotated channels are zeroed again after the norm, whose mean and bias fill them."""

    @model_validator(mode="after")
    def _sizes(self) -> Self:
        if self.chunk <= self.sinks:
            raise ValueError(
                f"chunk ({self.chunk}) does not exceed sinks ({self.sinks}): the first chunk's other tokens take what merges"
            )
        if isinstance(self.growth, FixedGrowth | SaturatingGrowth) and self.growth.slots < self.chunk:
            raise ValueError(
                f"growth.slots ({self.growth.slots}) is below chunk ({self.chunk}): the first chunk has a slot a token"
            )
        return self

    @override
    def refuses(self, attention: "AttentionConfig") -> str | None:
        if reason := attention.projection.unpaired:
            return f"sums keys and values, and {reason}"
        rope, width = (getattr(attention.projection, field, None) for field in ("rope", "head_width"))
        rotated = 0 if rope is None or width is None else 2 * (int(width * rope.fraction) // 2)
        if rope is not None and width is None:
            return "averages keys over positions, and this projection rotates whole keys (rope)"
        if self.rotated != rotated:
            return f"says rotated: {self.rotated}, but the projection rotates {rotated} channels of a key (rope.fraction)"
        if width is not None and rotated >= width:
            return f"averages keys over positions, so rope.fraction must leave channels unrotated: all {width} are rotated"
        if self.gate_appends and (attention.retention is None or "merge" not in attention.retention.gates):
            return "has gate_appends, which needs the gate 'merge' (retention: {kind: merge_gate})"
        return None

    @override
    def refuses_length(self, longest: int) -> str | None:
        return exceeding(self.chunk, longest)

    @override
    def build(self, entry: EntrySpec, init: "Init") -> "KVM":
        if missing := {"k", "v"} - entry.keys():
            raise UserError(f"memory kvm needs entries of keys and values; this projection writes no '{min(missing)}'.")
        return KVM(self, entry, init)

    @property
    def window(self) -> int:
        """Tokens of a full window."""
        return self.chunk * self.window_chunks

    def slots_after(self, chunks: int) -> int:
        """Slots once the first `chunks` of a document are folded.

        What the schedule gives the tokens read by then, but no more than were folded. (At most `chunk` of them are new, since no
        schedule grows faster than a slot a token once it gives fewer than there are tokens.)
        """
        if chunks <= 0:
            return 0
        read = (chunks - 1 + self.window_chunks) * self.chunk
        return max(self.chunk, min(self.growth.slots_for(read), chunks * self.chunk))

    def slots(self, context: int) -> int:
        """Slots that the last of `context` tokens reads."""
        return self.slots_after((context - 1) // self.chunk - self.window_chunks + 1)

    @override
    def cache_bytes(self, batch: int, capacity: int, entry: EntrySpec) -> int:
        return batch * (min(self.window, capacity) * entry_bytes(entry) + self.slots(capacity) * _slot_bytes(entry))

    def _window(self, context: int) -> int:
        return min(context, self.window - self.chunk + (context - 1) % self.chunk + 1)

    @override
    def keys_read(self, context: int) -> float:
        return self.slots(context) + self._window(context)

    @override
    def read_bytes(self, context: int, entry: EntrySpec) -> float:
        return self.slots(context) * _slot_bytes(entry) + self._window(context) * entry_bytes(entry)

    @override
    def flops(self, context: int, projection: "ProjectionConfig", model: "ModelConfig") -> float:
        likeness = self.slots(context) and (self.slots(context) + self.chunk) * projection.entry(model)["k"].size
        return super().flops(context, projection, model) + 2.0 * likeness


def _slot_bytes(entry: EntrySpec) -> int:
    """Sums of keys and values, and a length a head, in float32."""
    return 4 * (entry["k"].size + entry["v"].size + entry["k"].shape[0])


class KVM(Memory):
    """State: a ring of the window's entries, and of each slot the sums of its keys and values and the length of its value.

    How many slots hold something follows from a token's position, so nothing is reset where a document begins.
    """

    def __init__(self, config: KVMConfig, entry: EntrySpec, init: "Init"):
        heads, width = entry["k"].shape
        self.config = config
        self.weight = init.vector((width,), ("head",), value=1.0)
        self.bias = init.vector((width,), ("head",))
        self.slot_temperature = init.vector((heads,), ("kv_heads",), value=1.0) if config.head_temperatures else None
        self.window_temperature = init.vector((heads,), ("kv_heads",), value=1.0) if config.head_temperatures else None

    @override
    def init(self, batch: int, capacity: int, entry: EntrySpec) -> State:
        spec = {name: jax.ShapeDtypeStruct(entry[name].shape, jnp.float32) for name in ("k", "v")}
        spec["radius"] = jax.ShapeDtypeStruct(entry["k"].shape[:1], jnp.float32)
        window = empty_slots(batch, min(self.config.window, capacity), entry)
        return {"window": window, "slots": empty_slots(batch, self.config.slots(capacity), spec)}

    @override
    def update(self, state: State, entry: Entry, place: Place, reader) -> tuple[State, KeyValueMeans]:
        state = _laid_out(state, entry)
        window, sums = state["window"], state["slots"]
        written, leaving = _written(window, entry, place), self._leaving(place, sums)
        if entry["k"].shape[1] == 1:
            size = window["k"].shape[1]
            if leaving is not None:
                oldest = (place.index[0] + jnp.arange(self.config.chunk)) % size  # a full window's, in every row that has one
                tokens = lambda _: jax.tree.map(lambda ring: ring[:, oldest], window)  # noqa: E731
                sums, _ = self._fold(sums, tokens, jax.tree.map(lambda a: a[0], leaving))
            index = place.index[0] - (place.index[0] - jnp.arange(size)) % size
            return {"window": written, "slots": sums}, KeyValueMeans(self, written, index, sums, None)
        tokens, index = _in_order(window, entry, place)
        after, choice = self._fold_all(sums, tokens, leaving)
        return {"window": written, "slots": after}, KeyValueMeans(self, tokens, index, sums, _both(leaving, choice))

    @override
    def view(self, entry: Entry, place: Place, reader) -> KeyValueMeans:
        batch, length = place.positions.shape
        spec = {name: jax.ShapeDtypeStruct(leaf.shape[2:], leaf.dtype) for name, leaf in entry.items()}
        state = _laid_out(self.init(batch, length, spec), entry)
        tokens, index = _in_order(state["window"], entry, place)
        leaving, sums = self._leaving(place, state["slots"]), state["slots"]
        still, at_rest = jax.lax.stop_gradient((self, tokens))  # which slot a token goes to is a choice: it has no gradient
        return KeyValueMeans(self, tokens, index, sums, _both(leaving, still._fold_all(sums, at_rest, leaving)[1]))

    def _leaving(self, place: Place, sums: Entry) -> Leaving | None:
        """What leaves the window as these tokens come; None: there are no slots, since rows end within the window."""
        c, slots = self.config, sums["k"].shape[1]
        if not slots:
            return None
        position = blocks(place.positions, c.chunk, -1)  # [n, B, block]
        begins = (position % c.chunk == 0) & (position >= c.window)
        chunk = jnp.max(jnp.where(begins, position, 0), axis=-1) // c.chunk - c.window_chunks
        held = self.held(chunk, slots)
        block = jnp.arange(len(position))[:, None] * position.shape[-1]
        return Leaving(block + jnp.argmax(begins, axis=-1), begins.any(axis=-1), held, self.held(chunk + 1, slots) - held)

    def held(self, chunks: Int[Array, "..."], slots: int) -> Int[Array, "..."]:
        """`KVMConfig.slots_after`, in a state of so many slots."""
        table = [0]
        while table[-1] < slots:
            table.append(self.config.slots_after(len(table)))
        steps = jnp.asarray(np.diff(table), jnp.int32)  # summed rather than looked up, which keeps the layout over devices
        return jnp.sum(jnp.where(chunks[..., None] > jnp.arange(len(steps)), steps, 0), axis=-1)

    def _fold_all(self, sums: Entry, tokens: Entry, leaving: Leaving | None) -> tuple[Entry, Choice | None]:
        """The sums after all that leaves."""
        if leaving is None:
            return sums, None
        return jax.lax.scan(
            lambda sums, one: self._fold(sums, partial(chunk_of, tokens, size=self.config.chunk), one), sums, leaving
        )

    def _fold(self, sums: Entry, tokens: Callable[[jax.Array], Entry], leaving: Leaving) -> tuple[Entry, Choice]:
        """Folds the chunk `tokens(leaving.at)` of the rows that have one."""

        def some(sums: Entry) -> tuple[Entry, Choice]:
            chunk = tokens(leaving.at)
            keys = self.memory_key(chunk["k"])
            alone = self.weight_of(chunk, jnp.ones(keys.shape[:-1], bool), leaving)
            slots = self.norm(means.keep(means.first(leaving.held, sums["k"].shape[1]), sums["k"]))
            own = self.norm(alone[..., None] * keys)
            slot, new = means.choose(keys, own, slots, leaving.held, leaving.added, self.config.sinks)
            choice = jnp.where(leaving.found[:, None, None], slot, -1), new
            return self.add(sums, chunk, leaving, choice), choice

        def none(sums: Entry) -> tuple[Entry, Choice]:
            like = tokens(leaving.at)["k"][..., 0]
            return sums, (jnp.full_like(like, -1, dtype=jnp.int32), jnp.full_like(like, False, dtype=bool))

        return jax.lax.cond(leaving.found.any(), some, none, sums)

    def add(self, sums: Entry, chunk: Entry, leaving: Leaving, choice: Choice) -> Entry:
        """The sums with a chunk's tokens, each where it was chosen to go."""
        slot, new = choice
        weight = self.weight_of(chunk, new, leaving)[..., None]
        k, v = weight * self.memory_key(chunk["k"]), weight * chunk["v"].astype(jnp.float32)
        held = jnp.where(leaving.found, leaving.held, sums["k"].shape[1])
        return means.add(sums, k, v, slot, new, held)

    def weight_of(self, chunk: Entry, new: Bool[Array, "B C K"], leaving: Leaving) -> Float[Array, "B C K"]:
        """How much of each token is summed: what the merge gate says; all of one that begins a slot, unless by `gate_appends`."""
        if "merge" not in chunk:
            return jnp.ones(new.shape, jnp.float32)
        whole = new & (leaving.held == 0)[:, None, None] if self.config.gate_appends else new
        return jnp.where(whole, 1.0, chunk["merge"])

    def entries(self, sums: Entry, held: Int[Array, " B"], dtype) -> Entry:
        """Keys and values of the first `held` slots; zeros beyond them."""
        kept = means.first(held, sums["k"].shape[1])
        k, v, radius = (means.keep(kept, sums[name]) for name in ("k", "v", "radius"))
        if self.config.value_norm:
            v = v * (radius / means.length(v))[..., None]
        return {"k": warmed(self.norm(k), self.slot_temperature).astype(dtype), "v": v.astype(dtype)}

    def memory_key(self, k: Float[Array, "B C K H"]) -> Float[Array, "B C K H"]:
        """What a slot sums of a key."""
        return self.norm(self._unrotated(k.astype(jnp.float32)))

    def norm(self, x: Float[Array, "B S K H"]) -> Float[Array, "B S K H"]:
        """LayerNorm over the head, in float32."""
        x = x - jnp.mean(x, axis=-1, keepdims=True)
        x = x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + EPS)
        y = x * use(self.weight, jnp.float32) + use(self.bias, jnp.float32)
        return self._unrotated(y) if self.config.remask else y

    def _unrotated(self, x: jax.Array) -> jax.Array:
        return jnp.where(jnp.arange(x.shape[-1]) < self.config.rotated, 0, x)


def _laid_out(state: State, entry: Entry) -> State:
    """The state split over an Explicit mesh as the entries are."""
    like = {"k": entry["k"], "v": entry["v"], "radius": entry["k"][..., 0]}
    return {
        "window": {name: laid_out_as(slots, entry[name]) for name, slots in state["window"].items()},
        "slots": {name: laid_out_as(slots, like[name]) for name, slots in state["slots"].items()},
    }


def _written(window: Entry, entry: Entry, place: Place) -> Entry:
    """The ring with the latest of these tokens."""
    size = window["k"].shape[1]
    at = place.index[-size:] % size
    return {name: ring.at[:, at].set(entry[name][:, -size:].astype(ring.dtype)) for name, ring in window.items()}


def _in_order(window: Entry, entry: Entry, place: Place) -> tuple[Entry, Int[Array, " S"]]:
    """The ring's tokens from the oldest on, then these; and their row indices."""
    size = window["k"].shape[1]
    ordered = {name: jnp.roll(ring, -(place.index[0] % size), axis=1) for name, ring in window.items()}
    tokens = {name: jnp.concatenate([ring, entry[name].astype(ring.dtype)], axis=1) for name, ring in ordered.items()}
    return tokens, place.index[0] - size + jnp.arange(tokens["k"].shape[1])


def _both(leaving: Leaving | None, choice: Choice | None) -> tuple[Leaving, Choice] | None:
    return None if leaving is None or choice is None else (leaving, choice)
