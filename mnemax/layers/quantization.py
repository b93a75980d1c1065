"""Entries in few bits, and how they are read (see `memories/quantized.py`)."""

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, override

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from mnemax.kernels import quantization
from mnemax.kernels.mask import Mask
from mnemax.kernels.merge import merge
from mnemax.kernels.quantization import BITS, Parameters
from mnemax.layers.memories import Entry, EntrySpec, Place, Reader, Slots
from mnemax.layers.projections import Projection
from mnemax.layers.retention import Candidates, Ranking

if TYPE_CHECKING:
    from mnemax.layers.memories.quantized import QuantizedConfig


@dataclass(frozen=True)
class Codec:
    """How the leaves [B, S, K, W] of entries are coded; gates stay as they are.

    A coded leaf is a leaf of bytes under the same name, with `name.scale` and, for integers, `name.zero` beside it; keys per
    channel are without, since they share theirs with their group.
    """

    config: "QuantizedConfig"
    dtype: jnp.dtype

    def form(self, name: str) -> Any:
        """The format of a leaf, None where it is kept as it is."""
        form = self.config.keys if name == "k" else self.config.values
        return None if form == "none" else form

    def shared(self, name: str) -> bool:
        """Whether a leaf's parameters belong to groups of tokens."""
        return name == "k" and self.form(name) is not None and self.config.key_layout == "per_channel"

    def size(self, width: int) -> int:
        """Channels of a group."""
        return min(self.config.group, width)

    def spec(self, entry: EntrySpec) -> EntrySpec:
        """A coded token."""
        coded = {}
        for name, leaf in entry.items():
            form = self.form(name)
            if leaf.ndim != 2 or form is None:
                coded[name] = leaf
                continue
            heads, width = leaf.shape
            coded[name] = jax.ShapeDtypeStruct((heads, width * BITS[form] // 8), jnp.uint8)
            if not self.shared(name):
                coded |= _named(name, parameter_spec((heads, width // self.size(width)), leaf.dtype, form))
        return coded

    def encode(self, entry: Entry, shared: Parameters) -> Entry:
        """Codes of rotated entries; `shared` are the parameters of keys per channel, a token apart [B, T, K, W]."""
        coded = dict(entry)
        for name, x, form in self._coded(entry):
            given = shared if self.shared(name) else self._of_channels(x, form)
            coded[name] = quantization.encode(x, given, form)
            if not self.shared(name):
                coded |= _named(name, given)
        return coded

    def quantized(self, entry: Entry, shared: Parameters) -> Entry:
        """What `decode` would give of `encode`, with gradients straight through."""
        rounded = dict(entry)
        for name, x, form in self._coded(entry):
            given = shared if self.shared(name) else self._of_channels(x, form)
            rounded[name] = quantization.quantized(x, given, form).astype(x.dtype)
        return rounded

    def decode(self, entries: Entry) -> Entry:
        """The leaves that codes stand for; what is not coded stays."""
        plain = {}
        for name, leaf in entries.items():
            if "." in name:
                continue
            given = {part: entries[f"{name}.{part}"] for part in ("scale", "zero") if f"{name}.{part}" in entries}
            plain[name] = quantization.decode(leaf, given, self.form(name)).astype(self.dtype) if given else leaf
        return plain

    def rotated(self, x: Float[Array, "B T heads W"]) -> Float[Array, "B T heads W"]:
        """Heads times the Hadamard matrix, where the configuration asks for it; again: as they were."""
        if self.config.rotation == "none":
            return x
        matrix = jnp.asarray(quantization.hadamard(x.shape[-1]))
        return jnp.matmul(x.astype(jnp.float32), matrix, precision=jax.lax.Precision.HIGHEST).astype(x.dtype)

    def turned(self, entry: Entry) -> Entry:
        """Entries rotated; of rotated ones, as they were."""
        return {name: self.rotated(leaf) if leaf.ndim == 4 else leaf for name, leaf in entry.items()}

    def _coded(self, entry: Entry):
        for name, x in entry.items():
            if x.ndim == 4 and (form := self.form(name)) is not None:
                yield name, x, form

    def _of_channels(self, x: Float[Array, "B T K W"], form) -> Parameters:
        return quantization.of_neighbours(x, self.size(x.shape[-1]), form, self.config.clip)


def parameter_spec(shape: tuple[int, ...], dtype: jnp.dtype, form: str) -> EntrySpec:
    """Scales, and zero points of integers, in the dtype of what is coded."""
    names = ("scale",) if form == "fp8" else ("scale", "zero")
    return {name: jax.ShapeDtypeStruct(shape, dtype) for name in names}


def _named[T](name: str, parameters: dict[str, T]) -> dict[str, T]:
    return {f"{name}.{part}": value for part, value in parameters.items()}


@partial(jax.tree_util.register_dataclass, data_fields=["exact", "coded"], meta_fields=["codec", "delay"])
@dataclass(frozen=True)
class ExactAndCoded:
    """The latest tokens and the first as they were, and the others from their codes: two attentions, joined.

    Attributes:
        exact: what is read as it was.
        coded: the view of the inner memory, whose tokens have the row index at which they came to it; None: nothing has come yet.
        delay: how many tokens after its own each token came to the inner memory.
    """

    exact: Slots
    coded: Any
    codec: Codec
    delay: int

    def read(
        self, query: Any, projection: Projection, place: Place, implementation: str
    ) -> tuple[Float[Array, "B T N Hv"], Float[Array, "B T N"]]:
        exact = self.exact.read(query, projection, place, implementation)
        if self.coded is None:
            return exact
        of_codes = OfCodes(projection, self.codec, self.delay)
        return merge(exact, self.coded.read(query, of_codes, delayed(place, self.delay, self.codec.config.sinks), implementation))


def delayed(place: Place, delay: int, sinks: int) -> Place:
    """Where tokens stand by the clock of the inner memory: a document begins there as its first token but for the sinks comes."""
    return Place(place.index, place.positions - (delay + sinks))


class OfCodes(Projection):
    """A projection over coded entries."""

    def __init__(self, projection: Projection, codec: Codec, delay: int):
        self.projection, self.codec, self.delay = projection, codec, delay

    @override
    def attend(self, query: Any, entries: Entry, mask: Mask, implementation: str, *, key_bias=None, key_slope=None, evict_at=None):
        if key_slope is not None:  # the mask's ages are counted from when tokens came here
            late = self.delay * key_slope
            key_bias = late if key_bias is None else key_bias + late
        terms = {"key_bias": key_bias, "key_slope": key_slope, "evict_at": evict_at}
        given = {name: term for name, term in terms.items() if term is not None}
        decoded = self.codec.decode(entries)
        if not self._reads_as_cached(decoded):
            return self.projection.attend(query, self.codec.turned(decoded), mask, implementation, **given)
        # Queries and outputs are fewer than entries.
        out, lse = self.projection.attend(self.codec.rotated(query), decoded, mask, implementation, **given)
        return self.codec.rotated(out), lse

    def _reads_as_cached(self, entries: Entry) -> bool:
        """Whether keys and values are the entries themselves, so that rotated ones can be attended to."""
        k, v = self.projection.expand(entries)
        return k is entries.get("k") and v is entries.get("v")


class RankingOfCodes(Ranking):
    """A ranking of coded entries, by what their codes stand for."""

    def __init__(self, ranking: Ranking, projection: Projection, codec: Codec, entry: Entry):
        self.ranking, self.projection, self.codec = ranking, projection, codec
        self.attends, self.deferred, self.foresees = ranking.attends, ranking.deferred, ranking.foresees
        self.needs = tuple(name for name in entry if name.partition(".")[0] in ranking.needs)

    @override
    def observe(self, entry: Entry, place: Place, reader: Reader) -> Entry:
        plain = replace(reader, projection=self.projection, retention=self.ranking)
        return entry | {"retention": self.ranking.observe(self._plain(entry), place, plain)["retention"]}

    @override
    def rank(self, candidates: Candidates) -> Float[Array, "B S K"]:
        return self.ranking.rank(replace(candidates, entries=self._plain(candidates.entries)))

    @override
    def attended(self, retention: Float[Array, "B S K"], weights: Float[Array, "B S K"]) -> Float[Array, "B S K"]:
        return self.ranking.attended(retention, weights)

    @override
    def bias(self, entries: Entry) -> Float[Array, "B S K"] | None:
        return self.ranking.bias(self._plain(entries))

    @override
    def slope(self, entries: Entry) -> Float[Array, "B S K"] | None:
        return self.ranking.slope(self._plain(entries))

    def _plain(self, entries: Entry) -> Entry:
        return self.codec.turned(self.codec.decode(entries))
