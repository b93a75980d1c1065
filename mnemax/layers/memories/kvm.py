"""Key-value means (KVM, arXiv 2605.09877): a window of chunks, and before it slots that sum what is alike.

A chunk that leaves the window is folded into the slots: its most novel tokens become slots of their own, as many as the schedule
allows, and each of the others is added to the slot that its key is most like. A query reads slots and window in one softmax.

Chunks are counted from the beginning of each document. Of any `chunk` tokens in a row at most one begins a chunk, so that a walk in
blocks of that many tokens folds at most once a block and row, wherever documents begin and however a row is cut into calls.
"""

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, override

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int
from pydantic import Field, model_validator

from mnemax.configs.base import Config, NonNegativeInt, PositiveFloat, PositiveInt
from mnemax.errors import UserError
from mnemax.kernels.merge import merge
from mnemax.kernels.xla import ATTENTION
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
)
from mnemax.sharding import use

if TYPE_CHECKING:
    from mnemax.configs.schema import AttentionConfig, ModelConfig
    from mnemax.layers.param import Init
    from mnemax.layers.projections import Projection, ProjectionConfig

EPS = 1e-5
TINY = 1e-24  # the least square of a length that is divided by


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
        rope, width = (getattr(attention.projection, field, None) for field in ("rope", "head_width"))
        rotated = 0 if rope is None or width is None else 2 * (int(width * rope.fraction) // 2)
        if self.rotated != rotated:
            return f"says rotated: {self.rotated}, but the projection rotates {rotated} channels of a key (rope.fraction)"
        if width is not None and rotated >= width:
            return f"averages keys over positions, so rope.fraction must leave channels unrotated: all {width} are rotated"
        if self.gate_appends and (attention.retention is None or "merge" not in attention.retention.gates):
            return "has gate_appends, which needs the gate 'merge' (retention: {kind: merge_gate})"
        return None

    @override
    def build(self, entry: EntrySpec, init: "Init") -> "KVM":
        if missing := {"k", "v"} - entry.keys():
            raise UserError(f"memory kvm needs entries of keys and values; this projection writes no '{min(missing)}'.")
        if self.chunk > init.model.max_length:
            raise UserError(
                f"memory.chunk ({self.chunk}) exceeds model.max_length ({init.model.max_length}): nothing would leave the window."
            )
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


@partial(jax.tree_util.register_dataclass, data_fields=["at", "found", "old", "new", "slot"], meta_fields=[])
@dataclass(frozen=True)
class Folds:
    """What is folded before or within each block of tokens; n blocks.

    Attributes:
        at: where, among the tokens, the chunk begins that is folded.
        found: whether the row has one.
        old, new: slots before and after it.
        slot: the slot of each of the chunk's tokens, -1 where nothing is folded; None as long as that is not decided.
    """

    at: Int[Array, "n B"]
    found: Bool[Array, "n B"]
    old: Int[Array, "n B"]
    new: Int[Array, "n B"]
    slot: Int[Array, "n B C K"] | None = None


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
        slots = self.config.slots(capacity)
        spec = {name: jax.ShapeDtypeStruct(entry[name].shape, jnp.float32) for name in ("k", "v")}
        spec["radius"] = jax.ShapeDtypeStruct(entry["k"].shape[:1], jnp.float32)
        return {"window": empty_slots(batch, min(self.config.window, capacity), entry), "slots": empty_slots(batch, slots, spec)}

    @override
    def update(self, state: State, entry: Entry, place: Place, reader) -> tuple[State, "KeyValueMeans"]:
        state = _laid_out(state, entry)
        ring, sums = state["window"], state["slots"]
        size, length = ring["k"].shape[1], entry["k"].shape[1]
        kept, at = min(size, length), place.index[-size:] % size
        written = {name: slots.at[:, at].set(entry[name][:, -kept:].astype(slots.dtype)) for name, slots in ring.items()}
        folds = self._folds(place, sums)
        if length == 1:
            if folds is not None:
                oldest = (place.index[0] + jnp.arange(self.config.chunk)) % size
                chunk = lambda _: jax.tree.map(lambda slots: slots[:, oldest], ring)  # noqa: E731
                sums, _ = self._fold(sums, jax.tree.map(lambda a: a[0], folds), chunk)
            index = place.index[0] - (place.index[0] - jnp.arange(size)) % size
            return {"window": written, "slots": sums}, KeyValueMeans(self, written, index, sums, None)
        view = self._whole(state, entry, place)
        sums, folds = self._fold_all(view, folds)
        return {"window": written, "slots": sums}, replace(view, folds=folds)

    @override
    def view(self, entry: Entry, place: Place, reader) -> "KeyValueMeans":
        batch, length = place.positions.shape
        spec = {name: jax.ShapeDtypeStruct(leaf.shape[2:], leaf.dtype) for name, leaf in entry.items()}
        view = self._whole(_laid_out(self.init(batch, length, spec), entry), entry, place)
        # Which slot a token goes to is a choice, which has no gradient.
        decided = jax.lax.stop_gradient(view)
        return replace(view, folds=decided.memory._fold_all(decided, self._folds(place, view.sums))[1])

    def _whole(self, state: State, entry: Entry, place: Place) -> "KeyValueMeans":
        """The window's tokens in order and then the new ones, to be read a block after another."""
        size = state["window"]["k"].shape[1]
        in_order = lambda ring: jnp.roll(ring, -(place.index[0] % size), axis=1)  # noqa: E731
        tokens = {
            name: jnp.concatenate([in_order(ring), entry[name].astype(ring.dtype)], 1) for name, ring in state["window"].items()
        }
        index = place.index[0] - size + jnp.arange(tokens["k"].shape[1])
        return KeyValueMeans(self, tokens, index, state["slots"], None)

    def _folds(self, place: Place, sums: Entry) -> Folds | None:
        """Where these tokens begin chunks that make another leave the window; None: there are no slots."""
        c, slots = self.config, sums["k"].shape[1]
        if not slots:
            return None
        position = _blocks(place.positions, c.chunk, -1)  # [n, B, block]
        begins = (position % c.chunk == 0) & (position >= c.window)
        chunk = jnp.max(jnp.where(begins, position, 0), axis=-1) // c.chunk - c.window_chunks
        first = jnp.arange(len(position))[:, None] * position.shape[-1]
        return Folds(first + jnp.argmax(begins, axis=-1), begins.any(axis=-1), self.held(chunk, slots), self.held(chunk + 1, slots))

    def held(self, chunks: Int[Array, "..."], slots: int) -> Int[Array, "..."]:
        """`KVMConfig.slots_after`, in a state of so many slots."""
        table = [0]
        while table[-1] < slots:
            table.append(self.config.slots_after(len(table)))
        steps = jnp.asarray(np.diff(table), jnp.int32)  # summed rather than looked up, which keeps the layout over devices
        return jnp.sum(jnp.where(chunks[..., None] > jnp.arange(len(steps)), steps, 0), axis=-1)

    def _fold_all(self, view: "KeyValueMeans", folds: Folds | None) -> tuple[Entry, Folds | None]:
        """The sums after all of the tokens, and the slots of what was folded on the way."""
        if folds is None:
            return view.sums, None
        step = lambda sums, fold: self._fold(sums, fold, partial(_chunk, view.tokens, size=self.config.chunk))  # noqa: E731
        sums, slot = jax.lax.scan(step, view.sums, folds)
        return sums, replace(folds, slot=slot)

    def _fold(self, sums: Entry, fold: Folds, chunk) -> tuple[Entry, Int[Array, "B C K"]]:
        """Folds the tokens that `chunk(fold.at)` gives, in the rows that have some."""

        def some(sums: Entry):
            tokens = chunk(fold.at)
            slot = jnp.where(fold.found[:, None, None], self._choose(sums, tokens, fold), -1)
            return self.add(sums, tokens, replace(fold, slot=slot)), slot

        def none(sums: Entry):
            return sums, jnp.full_like(chunk(fold.at)["k"][..., 0], -1, dtype=jnp.int32)

        return jax.lax.cond(fold.found.any(), some, none, sums)

    def _choose(self, sums: Entry, tokens: Entry, fold: Folds) -> Int[Array, "B C K"]:
        """The slot of each token: a new one for the most novel, for others the one most alike, new ones and no sinks among them."""
        c, count = self.config, sums["k"].shape[1]
        keys, held = self.memory_key(tokens["k"]), _first(fold.old, count)
        likeness = _product("bckh,bmkh->bckm", keys, self.norm(_where(held, sums["k"])))
        likeness = jnp.where(held[:, None, None], likeness, -jnp.inf)
        novelty_rank = jnp.argsort(jnp.argsort(likeness.max(axis=-1), axis=1), axis=1)
        new = novelty_rank < (fold.new - fold.old)[:, None, None]
        own = self._weight(tokens, new, fold)[..., None] * keys
        to_new = jnp.where(jnp.swapaxes(new, 1, 2)[:, None], _product("bckh,bdkh->bckd", keys, self.norm(own)), -jnp.inf)
        best = jnp.argmax(jnp.concatenate([jnp.where(jnp.arange(count) < c.sinks, -jnp.inf, likeness), to_new], axis=-1), axis=-1)
        number = fold.old[:, None, None] + jnp.cumsum(new, axis=1) - 1
        joined = jnp.where(best < count, best, jnp.take_along_axis(number, jnp.maximum(best - count, 0), axis=1))
        return jnp.where(new, number, joined)

    def add(self, sums: Entry, tokens: Entry, fold: Folds) -> Entry:
        """The sums with a chunk's tokens, each in its slot. Slots that did not hold anything before are overwritten."""
        count = sums["k"].shape[1]
        new = fold.slot >= fold.old[:, None, None]
        weight = self._weight(tokens, new, fold)[..., None]
        k, v = weight * self.memory_key(tokens["k"]), weight * tokens["v"].astype(jnp.float32)
        kept = _first(jnp.where(fold.found, fold.old, count), count)
        into = jax.nn.one_hot(fold.slot, count, dtype=jnp.float32)
        return {
            "k": _where(kept, sums["k"]) + _product("bckm,bckh->bmkh", into, k),
            "v": _where(kept, sums["v"]) + _product("bckm,bckh->bmkh", into, v),
            "radius": _where(kept, sums["radius"]) + _product("bckm,bck->bmk", into, jnp.where(new, _length(v), 0)),
        }

    def _weight(self, tokens: Entry, new: Bool[Array, "B C K"], fold: Folds) -> Float[Array, "B C K"]:
        """The merge gate where it applies, and 1."""
        if "merge" not in tokens:
            return jnp.ones(new.shape, jnp.float32)
        ungated = new & (fold.old == 0)[:, None, None] if self.config.gate_appends else new
        return jnp.where(ungated, 1.0, tokens["merge"])

    def entries(self, sums: Entry, held: Int[Array, " B"], dtype) -> Entry:
        """Keys and values of the first `held` slots; zeros beyond them."""
        kept = _first(held, sums["k"].shape[1])
        k, v = (_where(kept, sums[name]) for name in ("k", "v"))
        if self.config.value_norm:
            v = v * (_where(kept, sums["radius"]) / _length(v))[..., None]
        return {"k": _warmed(self.norm(k), self.slot_temperature).astype(dtype), "v": v.astype(dtype)}

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


@partial(jax.tree_util.register_dataclass, data_fields=["memory", "tokens", "index", "sums", "folds"], meta_fields=[])
@dataclass(frozen=True)
class KeyValueMeans:
    """Slots and window, read in one softmax.

    Attributes:
        memory: the weights.
        tokens: entries of the window, each leaf [B, S, ...]; for several new tokens the window before them, then themselves.
        index: row index of each of `tokens`; negative: empty.
        sums: the slots before these tokens, or, without `folds`, those they read.
        folds: what is folded while these tokens are read.
    """

    memory: KVM
    tokens: Entry
    index: Int[Array, " S"]
    sums: Entry
    folds: Folds | None

    def read(self, query: Any, projection: "Projection", place: Place, implementation: str):
        """Output [B, T, N, Hv] and log-sum-exp [B, T, N]."""
        attend = lambda slots, query, place: slots.read(query, projection, place, implementation)  # noqa: E731
        window = {"k": _warmed(self.tokens["k"], self.memory.window_temperature), "v": self.tokens["v"]}
        if place.index.shape[0] == 1:
            part = self._near(attend, window, self.index, query, place)
            return self._and_slots(attend, part, self.sums, self._seen(place.positions), query)
        return self._walk(attend, window, query, place)

    def _walk(self, attend, window: Entry, query: Any, place: Place):
        """A block of at most a chunk of tokens after another, folding on the way."""
        chunk, length = self.memory.config.chunk, place.index.shape[0]
        before, block = self.index.shape[0] - length, min(chunk, length)
        missing = -length % block
        pad = lambda a: jnp.pad(a, ((0, 0), (0, missing), *((0, 0),) * (a.ndim - 2)))  # noqa: E731
        window, index = jax.tree.map(pad, window), jnp.pad(self.index, (0, missing), constant_values=-1)

        @partial(jax.checkpoint, policy=jax.checkpoint_policies.save_only_these_names(ATTENTION), prevent_cse=False)
        def step(sums: Entry, xs):
            first, query, positions, fold = xs
            cut = lambda a, axis, start, size: jax.lax.dynamic_slice_in_dim(a, start, size, axis)  # noqa: E731
            near, near_index = (
                jax.tree.map(lambda a: cut(a, 1, first, before + block), window),
                cut(index, 0, first, before + block),
            )
            part = self._near(attend, near, near_index, query, Place(cut(index, 0, first + before, block), positions))
            if fold is None:
                return sums, part
            seen = self._seen(positions)
            later = ~fold.found[:, None] | (first + jnp.arange(block) >= fold.at[:, None])
            part = self._and_slots(attend, part, sums, jnp.where(later, 0, seen), query)
            add = lambda sums: self.memory.add(sums, _chunk(self.tokens, fold.at, chunk), fold)  # noqa: E731
            sums = jax.lax.cond(fold.found.any(), add, lambda sums: sums, sums)
            return sums, self._and_slots(attend, part, sums, jnp.where(later, seen, 0), query)

        queries = jax.tree.map(lambda a: _blocks(a, chunk, 0), query)
        positions = _blocks(place.positions, chunk, -1)
        firsts = jnp.arange(len(positions)) * block
        parts = jax.lax.scan(step, self.sums, (firsts, queries, positions, self.folds))[1]
        return jax.tree.map(lambda a: jnp.moveaxis(a, 0, 1).reshape(a.shape[1], -1, *a.shape[3:])[:, :length], parts)

    def _near(self, attend, window: Entry, index: jax.Array, query: Any, place: Place):
        """The window: as if a document began with the first chunk of it."""
        c = self.memory.config
        begin = jnp.maximum(place.positions // c.chunk - c.window_chunks + 1, 0) * c.chunk
        return attend(Slots(window, index[None]), query, Place(place.index, place.positions - begin))

    def _seen(self, positions: Int[Array, "B T"]) -> Int[Array, "B T"]:
        """How many slots are read from each position."""
        c = self.memory.config
        return self.memory.held(positions // c.chunk - c.window_chunks + 1, self.sums["k"].shape[1])

    def _and_slots(self, attend, part, sums: Entry, seen: Int[Array, "B T"], query: Any):
        """`part` and the first `seen` slots. To the mask slot s is token M - s, and the document begins at the last one seen."""
        count = sums["k"].shape[1]

        def with_slots(part):
            slots = Slots(self.memory.entries(sums, seen.max(axis=1), self.tokens["k"].dtype), count - jnp.arange(count)[None])
            return merge(part, attend(slots, query, Place(jnp.full(seen.shape[1:], count), seen - 1)))

        return jax.lax.cond((seen > 0).any(), with_slots, lambda part: part, part) if count else part


def _laid_out(state: State, entry: Entry) -> State:
    """The state split over an Explicit mesh as the entries are."""
    like = {"k": entry["k"], "v": entry["v"], "radius": entry["k"][..., 0]}
    return {
        "window": {name: laid_out_as(slots, entry[name]) for name, slots in state["window"].items()},
        "slots": {name: laid_out_as(slots, like[name]) for name, slots in state["slots"].items()},
    }


def _blocks(x: Array, chunk: int, fill: int) -> Array:
    """[B, T, ...] as blocks [n, B, at most chunk, ...], the last one filled up."""
    block = min(chunk, x.shape[1])
    x = jnp.pad(x, ((0, 0), (0, -x.shape[1] % block), *((0, 0),) * (x.ndim - 2)), constant_values=fill)
    return jnp.moveaxis(x.reshape(x.shape[0], -1, block, *x.shape[2:]), 1, 0)


def _chunk(tokens: Entry, at: Int[Array, " B"], size: int) -> Entry:
    """`size` tokens of each row from `at` on."""
    index = at[:, None] + jnp.arange(size)
    return {name: jnp.take_along_axis(a, index.reshape(*index.shape, *(1,) * (a.ndim - 2)), axis=1) for name, a in tokens.items()}


def _first(held: Int[Array, " B"], slots: int) -> Bool[Array, "B M"]:
    return jnp.arange(slots) < held[:, None]


def _where(kept: Bool[Array, "B M"], x: Array) -> Array:
    return jnp.where(kept.reshape(*kept.shape, *(1,) * (x.ndim - 2)), x, 0)


def _warmed(k: Float[Array, "B S K H"], temperature) -> Float[Array, "B S K H"]:
    return k if temperature is None else k * use(temperature, k.dtype)[:, None]


def _length(v: Float[Array, "*batch H"]) -> Float[Array, "*batch"]:
    return jnp.sqrt(jnp.maximum(jnp.sum(v * v, axis=-1), TINY))


def _product(equation: str, a: Array, b: Array) -> Array:
    return jnp.einsum(equation, a, b, precision=jax.lax.Precision.HIGHEST)
