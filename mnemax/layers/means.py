"""Key-value means as they are read: slots that change from chunk to chunk, and a window (see `memories/kvm.py`)."""

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from mnemax.kernels.merge import merge
from mnemax.kernels.xla import ATTENTION
from mnemax.layers.memories import Entry, Place, Slots
from mnemax.sharding import use

if TYPE_CHECKING:
    from mnemax.layers.memories.kvm import KVM
    from mnemax.layers.projections import Projection


@partial(jax.tree_util.register_dataclass, data_fields=["at", "found", "held", "added"], meta_fields=[])
@dataclass(frozen=True)
class Leaving:
    """The chunk that leaves the window in each of n blocks of tokens.

    Attributes:
        at: where it begins among the tokens.
        found: whether the row has one.
        held, added: slots before it, and how many of its tokens begin one.
    """

    at: Int[Array, "*n B"]
    found: Bool[Array, "*n B"]
    held: Int[Array, "*n B"]
    added: Int[Array, "*n B"]


type Choice = tuple[Int[Array, "*n B C K"], Bool[Array, "*n B C K"]]
"""The slot of each token that leaves (-1: the row has none), and whether the token begins it."""


@partial(jax.tree_util.register_dataclass, data_fields=["memory", "tokens", "index", "sums", "folds"], meta_fields=[])
@dataclass(frozen=True)
class KeyValueMeans:
    """Slots and window, read in one softmax.

    Attributes:
        memory: the weights.
        tokens: entries of the window, each leaf [B, S, ...]; for several new tokens the window before them, then themselves.
        index: row index of each of `tokens`; negative: empty.
        sums: the slots that these tokens read; with `folds`: before the first of them.
        folds: what is folded while they are read.
    """

    memory: "KVM"
    tokens: Entry
    index: Int[Array, " S"]
    sums: Entry
    folds: tuple[Leaving, Choice] | None

    def read(self, query: Any, projection: "Projection", place: Place, implementation: str):
        """Output [B, T, N, Hv] and log-sum-exp [B, T, N]."""
        attend = lambda slots, query, place: slots.read(query, projection, place, implementation)  # noqa: E731
        window = {"k": warmed(self.tokens["k"], self.memory.window_temperature), "v": self.tokens["v"]}
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
            first, query, positions, folds = xs
            cut = lambda a, axis, start, size: jax.lax.dynamic_slice_in_dim(a, start, size, axis)  # noqa: E731
            near, near_index = (
                jax.tree.map(lambda a: cut(a, 1, first, before + block), window),
                cut(index, 0, first, before + block),
            )
            part = self._near(attend, near, near_index, query, Place(cut(index, 0, first + before, block), positions))
            if folds is None:
                return sums, part
            (leaving, choice), seen = folds, self._seen(positions)
            later = ~leaving.found[:, None] | (first + jnp.arange(block) >= leaving.at[:, None])
            part = self._and_slots(attend, part, sums, jnp.where(later, 0, seen), query)
            add = lambda sums: self.memory.add(sums, chunk_of(self.tokens, leaving.at, chunk), leaving, choice)  # noqa: E731
            sums = jax.lax.cond(leaving.found.any(), add, lambda sums: sums, sums)
            return sums, self._and_slots(attend, part, sums, jnp.where(later, seen, 0), query)

        queries = jax.tree.map(lambda a: blocks(a, chunk, 0), query)
        positions = blocks(place.positions, chunk, -1)
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


def blocks(x: Array, chunk: int, fill: int) -> Array:
    """[B, T, ...] as blocks [n, B, at most chunk, ...], the last one filled up."""
    block = min(chunk, x.shape[1])
    x = jnp.pad(x, ((0, 0), (0, -x.shape[1] % block), *((0, 0),) * (x.ndim - 2)), constant_values=fill)
    return jnp.moveaxis(x.reshape(x.shape[0], -1, block, *x.shape[2:]), 1, 0)


def chunk_of(tokens: Entry, at: Int[Array, " B"], size: int) -> Entry:
    """`size` tokens of each row from `at` on."""
    index = at[:, None] + jnp.arange(size)
    return {name: jnp.take_along_axis(a, index.reshape(*index.shape, *(1,) * (a.ndim - 2)), axis=1) for name, a in tokens.items()}


def warmed(k: Float[Array, "B S K H"], temperature) -> Float[Array, "B S K H"]:
    """Keys times a factor a head, where there is one."""
    return k if temperature is None else k * use(temperature, k.dtype)[:, None]
