"""Quantised entries: a memory that holds codes of a few bits, behind a window of tokens as they were.

Layout: KIVI (Liu et al. 2024, arXiv 2402.02750). Rotation: QuaRot (arXiv 2404.00456). Sinks: KVQuant (arXiv 2401.18079).

The definition: a token stands in the window for `residual` tokens. Then it is quantised and written to the inner memory, which
hence lags behind: by its clock, each token has the row index at which it came. A query reads the window and the document's first
`sinks` tokens as they were, and the inner memory's tokens from their codes. What a query reads of a token thus depends on how many
tokens lie between them, and not on how a row is cut into calls.
"""

from dataclasses import replace
from typing import Annotated, Literal, Self, override

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int
from pydantic import Field, model_validator

from mnemax.configs.base import NonNegativeInt, PositiveInt
from mnemax.errors import UserError
from mnemax.kernels import quantization
from mnemax.kernels.quantization import BITS, Parameters
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
)
from mnemax.layers.memories.bounded import BoundedConfig
from mnemax.layers.memories.chunk_ends import ChunkEndsConfig
from mnemax.layers.memories.full import FullConfig
from mnemax.layers.memories.window import Window, WindowConfig
from mnemax.layers.quantization import Codec, ExactAndCoded, OfCodes, RankingOfCodes, delayed, parameter_spec
from mnemax.layers.retention import Ranking

Form = Literal["int8", "int4", "int2", "fp8", "none"]


class QuantizedConfig(MemoryConfig):
    """The latest `residual` tokens and the first `sinks` as they were, and codes of what comes before them in an inner memory."""

    kind: Literal["quantized"] = "quantized"
    inner: Annotated[FullConfig | WindowConfig | BoundedConfig | ChunkEndsConfig, Field(discriminator="kind")] = FullConfig()
    """Keeps the codes: full, window, bounded or chunk_ends. Its sizes count the tokens that have left the residual window."""
    keys: Form = "int4"
    """Format of keys; none: as they are."""
    values: Form = "int4"
    """Format of values; none: as they are."""
    key_layout: Literal["per_channel", "per_token"] = "per_channel"
    """Keys share a scale along `group` tokens of the document, a channel apart (KIVI), or along `group` channels, a token apart, as
    values always do."""
    group: PositiveInt = 32
    """Numbers that share a scale. Of channels: at most a head's width."""
    residual: PositiveInt = 128
    """Latest tokens that are read as they were, the present one counted."""
    sinks: NonNegativeInt = 0
    """First tokens of the document that are always read as they were."""
    rotation: Literal["none", "hadamard"] = "none"
    """What keys and values are multiplied by before they are quantised, so that no channel stands out; undone in reading."""
    clip: Annotated[float, Field(gt=0, le=1)] = 1.0
    """The part of a group's range that codes span, about its middle; what lies outside goes to the ends."""

    @model_validator(mode="after")
    def _ends_of_the_document(self) -> Self:
        if isinstance(self.inner, ChunkEndsConfig) and self.sinks:
            raise ValueError(
                f"inner chunk_ends counts its chunks from a document's first token, which sinks ({self.sinks}) keep from it"
            )
        return self

    @model_validator(mode="after")
    def _groups_of_tokens(self) -> Self:
        if not self._per_channel:
            return self
        if self.residual < self.group:
            raise ValueError(
                f"residual ({self.residual}) is below group ({self.group}): keys per channel wait for their group to be complete"
            )
        if isinstance(self.inner, BoundedConfig):
            raise ValueError("inner bounded forgets token by token, so keys cannot share scales: it needs key_layout: per_token")
        if isinstance(self.inner, WindowConfig) and self.inner.sinks:
            raise ValueError(
                f"inner.sinks ({self.inner.sinks}) would outlive the scales of keys per channel: give them to 'sinks' of quantized"
            )
        return self

    @property
    def _per_channel(self) -> bool:
        return self.keys != "none" and self.key_layout == "per_channel"

    @property
    def takes(self) -> frozenset[str]:  # pyrefly: ignore[bad-override]
        return self.inner.takes

    @property
    def needs(self) -> frozenset[str]:  # pyrefly: ignore[bad-override]
        return self.inner.needs

    @override
    def refuses(self, attention) -> str | None:
        rope, rotated, relative = (getattr(attention.projection, field, None) for field in ("rope", "rotated", "relative"))
        if relative is not None or (rope is not None and rotated == "read"):
            return "hands tokens on with the row index at which they left its window, by which keys would be rotated when read"
        reason = self.inner.refuses(attention)
        return None if reason is None else f"has an inner memory that {reason}"

    @override
    def refuses_length(self, longest: int) -> str | None:
        return self.inner.refuses_length(longest)

    @override
    def build(self, entry: EntrySpec, init) -> "Quantized":
        if "k" not in entry:
            raise UserError(f"memory quantized needs entries with keys; this projection writes {', '.join(sorted(entry))}.")
        for name, leaf in entry.items():
            if leaf.ndim == 2:
                self._check_width(name, leaf.shape[-1])
        return Quantized(self, entry, init)

    def _check_width(self, name: str, width: int) -> None:
        form = self.keys if name == "k" else self.values
        if form != "none" and width * BITS[form] % 8:
            raise UserError(f"memory quantized: {form} codes of '{name}', whose width is {width}, fill no whole bytes.")
        if form != "none" and not (name == "k" and self._per_channel) and width % min(self.group, width):
            raise UserError(f"memory.group ({self.group}) does not divide the width of '{name}' ({width}).")
        if self.rotation == "hadamard" and width & (width - 1):
            raise UserError(f"memory.rotation: hadamard needs a width that is a power of 2, and that of '{name}' is {width}.")

    def groups(self, capacity: int) -> int:
        """Groups of tokens whose scales are kept: those that end among the tokens in reach."""
        reach = capacity // self.group
        if isinstance(self.inner, WindowConfig):
            reach = min(reach, -(-(self.inner.size + self.residual) // self.group))
        return max(reach, 1)

    def codec(self, entry: EntrySpec) -> Codec:
        return Codec(self, entry["k"].dtype)

    def shared(self, entry: EntrySpec) -> EntrySpec:
        """Parameters of a group of tokens."""
        return parameter_spec(entry["k"].shape, entry["k"].dtype, self.keys) if self._per_channel else {}

    @property
    def recent(self) -> WindowConfig:
        """What is kept as it was."""
        return WindowConfig(size=self.residual, sinks=self.sinks)

    @override
    def cache_bytes(self, batch: int, capacity: int, entry: EntrySpec) -> int:
        coded = self.inner.cache_bytes(batch, capacity, self.codec(entry).spec(entry))
        scales = batch * self.groups(capacity) * entry_bytes(self.shared(entry))
        return self.recent.cache_bytes(batch, capacity, entry) + coded + scales

    def _coded_tokens(self, context: int) -> int:
        return max(context - self.residual - self.sinks, 0)

    @override
    def keys_read(self, context: int) -> float:
        return self.recent.keys_read(context) + self.inner.keys_read(self._coded_tokens(context))

    @override
    def read_bytes(self, context: int, entry: EntrySpec) -> float:
        coded = self.inner.read_bytes(self._coded_tokens(context), self.codec(entry).spec(entry))
        scales = self.inner.keys_read(self._coded_tokens(context)) / self.group * entry_bytes(self.shared(entry))
        return self.recent.read_bytes(context, entry) + coded + scales


class Quantized(Memory):
    """State: a window of entries, the inner memory over codes, and a ring of the scales of groups of keys."""

    def __init__(self, config: QuantizedConfig, entry: EntrySpec, init):
        self.config = config
        self.codec = config.codec(entry)
        self.recent = Window(config.residual, config.sinks)
        self.inner = config.inner.build(self.codec.spec(entry), init)

    @override
    def init(self, batch: int, capacity: int, entry: EntrySpec) -> State:
        return {
            "recent": self.recent.init(batch, capacity, entry),
            "inner": self.inner.init(batch, capacity, self.codec.spec(entry)),
            "shared": empty_slots(batch, self.config.groups(capacity), self.config.shared(entry)),
        }

    @override
    def update(self, state: State, entry: Entry, place: Place, reader: Reader) -> tuple[State, ExactAndCoded]:
        old = {name: laid_out_as(leaf, entry[name]) for name, leaf in state["recent"]["entries"].items()}
        delay, length = old["k"].shape[1] - self.config.sinks, place.index.shape[0]
        order = self.config.sinks + (place.index[0] + jnp.arange(delay)) % delay
        both = {name: jnp.concatenate([old[name][:, order], leaf], axis=1) for name, leaf in entry.items()}
        entering = self.codec.turned({name: leaf[:, :length] for name, leaf in both.items()})
        shared = Shared(self, both["k"], state["shared"], place, delay)
        coded = self.codec.encode(entering, shared.at(place.index[None]))
        recent, exact = self.recent.update(state["recent"], entry, place, reader)
        later, reader_of_codes = delayed(place, delay, self.config.sinks), self._of_codes(reader, coded, delay)
        inner, view = self.inner.update(state["inner"], coded, later, reader_of_codes)
        if shared.kept:
            view = replace(view, entries=view.entries | {f"k.{part}": leaf for part, leaf in shared.at(view.index).items()})
        state = {"recent": recent, "inner": inner, "shared": shared.after()}
        return state, ExactAndCoded(_with_terms(exact, reader), view, self.codec, delay)

    @override
    def view(self, entry: Entry, place: Place, reader: Reader) -> ExactAndCoded:
        delay, length = self.config.residual, place.index.shape[0]
        exact = _with_terms(self.recent.view(entry, place, reader), reader)
        if length <= delay:
            return ExactAndCoded(exact, None, self.codec, delay)
        entering = self.codec.turned({name: _later(leaf, delay) for name, leaf in entry.items()})
        spec = {name: jax.ShapeDtypeStruct(leaf.shape[2:], leaf.dtype) for name, leaf in entry.items()}
        before = jnp.pad(entry["k"], ((0, 0), (delay, 0), (0, 0), (0, 0)))
        shared = Shared(self, before, empty_slots(len(place.positions), 1, self.config.shared(spec)), place, delay)
        rounded = self.codec.quantized(entering, shared.at(place.index[None]))
        later = delayed(place, delay, self.config.sinks)
        return ExactAndCoded(exact, self.inner.view(rounded, later, self._of_codes(reader, rounded, delay)), self.codec, delay)

    def _of_codes(self, reader: Reader, coded: Entry, delay: int) -> Reader:
        """The reader of the inner memory."""
        if not isinstance(reader.retention, Ranking):
            return reader
        retention = RankingOfCodes(reader.retention, reader.projection, self.codec, coded)
        return replace(reader, projection=OfCodes(reader.projection, self.codec, delay), retention=retention)


class Shared:
    """The scales of keys per channel, which tokens share in groups counted from their document's beginning.

    Groups that are complete before this call have theirs in a ring, group c in slot c modulo its size.
    """

    def __init__(self, memory: Quantized, keys: jax.Array, kept: Parameters, place: Place, delay: int):
        """`keys` [B, delay + T, K, W] are those of the tokens before this call, then of this call's."""
        self.kept = {name: laid_out_as(leaf, keys) for name, leaf in kept.items()}
        self.place, self.delay = place, delay
        self.group = memory.config.group
        if not kept:
            return
        missing = max(self.group - 1 - delay, 0)  # of a state too small for anything to leave its window
        near = jnp.pad(keys, ((0, 0), (missing, 0), (0, 0), (0, 0)))[:, delay + missing - self.group + 1 :]
        low, high = quantization.running_range(memory.codec.rotated(near), self.group)
        # Those of the group that ends at each of this call's tokens.
        self.ends = quantization.parameters(low, high, memory.codec.form("k"), memory.config.clip)

    def at(self, index: Int[Array, "B_or_1 S"]) -> Parameters:
        """Those of the tokens that came to the inner memory at these row indices, [B, S, K, W]; of hidden ones, any."""
        if not self.kept:
            return {}
        first, start = self.place.index[0], self.place.start
        index = laid_out_as(jnp.broadcast_to(index, (len(start), index.shape[1])), start)
        now = jnp.clip(index - first, 0, start.shape[1] - 1)
        # What came before this call is hidden, unless it is of the first query's document.
        start = jnp.where(index < first, start[:, :1], jnp.take_along_axis(start, now, axis=1))
        group = (index - self.delay - start) // self.group
        end = start + (group + 1) * self.group - 1 - first
        return {
            name: jnp.where((end >= 0)[..., None, None], _take(self.ends[name], end), _take(kept, group % kept.shape[1]))
            for name, kept in self.kept.items()
        }

    def after(self) -> Parameters:
        """The ring after this call: of the last token's document alone, since no other is read any more."""
        if not self.kept:
            return {}
        slots = next(iter(self.kept.values())).shape[1]
        last = (self.place.positions[:, -1:] + 1) // self.group - 1  # the group that was completed last; -1: none
        group = last - (last - jnp.arange(slots)) % slots
        end = self.place.start[:, -1:] + (group + 1) * self.group - 1 - self.place.index[0]
        new = (group >= 0) & (end >= 0)
        return {name: jnp.where(new[..., None, None], _take(self.ends[name], end), kept) for name, kept in self.kept.items()}


def _take(x: jax.Array, at: Int[Array, "B S"]) -> jax.Array:
    """x[b, at[b, s]], [B, S, ...], of what is outside the nearest."""
    return jnp.take_along_axis(x, jnp.clip(at, 0, x.shape[1] - 1)[..., None, None], axis=1)


def _later(x: jax.Array, delay: int) -> jax.Array:
    """What came `delay` tokens before each token; zeros before the row."""
    return jnp.pad(x[:, :-delay], ((0, 0), (delay, 0), *((0, 0),) * (x.ndim - 2)))


def _with_terms(slots: Slots, reader: Reader) -> Slots:
    """What the retention adds to the logits of tokens that are read as they were."""
    if not isinstance(reader.retention, Ranking):
        return slots
    return replace(slots, bias=reader.retention.bias(slots.entries), slope=reader.retention.slope(slots.entries))
