"""Bounded slots: each key head keeps `budget` tokens of its own choice, and the retention says which.

The definition, token after token: the new token joins the slots; are they more than `budget`, the one of the lowest retention goes,
that with the smaller row index among equals, and among the unprotected; then the query of the new token reads what is left. A token
that has gone does not come back, so the reading of many tokens at once is attention in which each key is hidden from the query on
that made it go (`evict_at`), and the state never has more than `budget` slots.
"""

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Literal, Self, override

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, Int
from pydantic import model_validator

from mnemax.configs.base import NonNegativeInt, PositiveInt
from mnemax.errors import UserError
from mnemax.kernels.mask import NEVER, Mask
from mnemax.kernels.xla import ATTENTION
from mnemax.layers.memories import (
    Entry,
    EntrySpec,
    Memory,
    MemoryConfig,
    Place,
    Reader,
    Slots,
    State,
    beside,
    empty_slots,
    entry_bytes,
    laid_out_as,
    row_index,
)
from mnemax.layers.retention import Candidates, Ranking, RankingConfig, attention_to

if TYPE_CHECKING:
    from mnemax.configs.schema import AttentionConfig


class BoundedConfig(MemoryConfig):
    """`budget` slots a key head, filled by the retention's choice. The present token is among them."""

    kind: Literal["bounded"] = "bounded"
    takes: ClassVar[frozenset[str]] = frozenset({"retention"})
    needs: ClassVar[frozenset[str]] = frozenset({"retention"})
    budget: PositiveInt
    sinks: NonNegativeInt = 0
    """First tokens of the document that never go."""
    recent: NonNegativeInt = 1
    """Latest tokens that do not go yet, the present one counted. 0: a token may be dropped at once, unread by itself."""

    @model_validator(mode="after")
    def _has_room(self) -> Self:
        if self.budget < self.sinks + self.recent + 1:
            raise ValueError(
                f"budget ({self.budget}) is below sinks + recent + 1 ({self.sinks + self.recent + 1}): the retention has no choice"
            )
        return self

    @override
    def refuses(self, attention: "AttentionConfig") -> str | None:
        if not isinstance(attention.retention, RankingConfig):
            return "keeps what a retention ranks highest, and the 'retention' of this layer ranks nothing"
        kind = getattr(attention.projection, "kind", "?")
        if not hasattr(attention.projection, "kv_heads"):
            return f"keeps other tokens for each key head, of which projection {kind} writes none"
        if not attention.projection.by_head:
            return f"keeps other tokens for each key head, and projection {kind} writes what belongs to no single one"
        return None

    @override
    def build(self, entry: EntrySpec, init) -> "Bounded":
        return Bounded(self)

    @override
    def cache_bytes(self, batch: int, capacity: int, entry: EntrySpec) -> int:
        return batch * min(self.budget, capacity) * (entry_bytes(entry) + 4 * _heads(entry))  # an int32 row index a slot and head

    @override
    def keys_read(self, context: int) -> float:
        return min(context, self.budget)


def _heads(entry: EntrySpec) -> int:
    return entry["retention"].shape[0]


class Bounded(Memory):
    """State: the slots and the row index [B, S, K] of the token in each; below its document's beginning: empty."""

    def __init__(self, config: BoundedConfig):
        self.budget, self.sinks, self.recent = config.budget, config.sinks, config.recent

    @override
    def init(self, batch: int, capacity: int, entry: EntrySpec) -> State:
        slots = min(self.budget, capacity)
        return {
            "entries": empty_slots(batch, slots, entry),
            "index": jnp.full((batch, slots, _heads(entry)), -1, jnp.int32),
        }

    @override
    def view(self, entry: Entry, place: Place, reader: Reader) -> Slots:
        retention, length = _ranking(reader), place.positions.shape[1]
        entry = retention.observe(entry, place, reader)
        evict_at = None
        if length > self.budget and not retention.deferred:
            index = jnp.full_like(entry["retention"][:, : self.budget], -1, jnp.int32)
            nothing = jax.tree.map(lambda leaf: jnp.zeros_like(leaf[:, : self.budget]), entry)
            *_, evict_at = self._pass(nothing, index, entry, place, reader)
            # Kept by `training.remat`, as attention's results are, so that no pass is made twice.
            evict_at = checkpoint_name(evict_at[:, self.budget :], ATTENTION)
        return replace(_slots(retention, entry, row_index(place), evict_at), aligned=True)

    @override
    def update(self, state: State, entry: Entry, place: Place, reader: Reader) -> tuple[State, Slots]:
        retention = _ranking(reader)
        if retention.foresees:
            raise UserError(
                "The retention of a layer (attention.retention) sees the future, which decoding has none of; use another kind."
            )
        entry = retention.observe(entry, place, reader)
        old = jax.tree.map(laid_out_as, state["entries"], entry)
        index = laid_out_as(state["index"], entry["retention"])
        if place.positions.shape[1] == 1:
            return self._step(old, index, entry, place, reader)
        both, indices = beside(old, entry), beside(index, _indices(entry, place))
        if retention.deferred:
            slots, value, evict_at = self._best(both, indices, index.shape[1], place, retention), None, None
        else:
            slots, value, evict_at = self._pass(old, index, entry, place, reader)
        take = lambda leaf: jnp.take_along_axis(leaf, slots.reshape(*slots.shape, *(1,) * (leaf.ndim - 3)), axis=1)  # noqa: E731
        entries = jax.tree.map(take, both) | ({} if value is None else {"retention": value})
        return {"entries": entries, "index": take(indices)}, _slots(retention, both, indices, evict_at)

    def _step(self, old: Entry, index: jax.Array, entry: Entry, place: Place, reader: Reader) -> tuple[State, Slots]:
        """One token: it takes the place of what goes."""
        retention, now, start = _ranking(reader), place.index[0], place.start[:, 0]
        slots = {"entries": _needed(old, retention), "index": index}
        token = {"entries": _needed(entry, retention), "index": _indices(entry, place)}
        last = self._last(beside(slots, token), now, start, retention)
        put = jax.vmap(jax.vmap(lambda slots, at, token: slots.at[at].set(token, mode="drop"), (1, 0, 0), 1))
        write = lambda slots, token: put(slots, last, token[:, 0].astype(slots.dtype))  # noqa: E731
        entries, index = jax.tree.map(write, (old, index), (entry, token["index"]))
        view = _slots(retention, entries, index, None)
        if retention.attends:
            entries = entries | {"retention": _after_reading(entries, index, place, reader)}
        return {"entries": entries, "index": index}, view

    def _pass(self, old: Entry, index: jax.Array, entry: Entry, place: Place, reader: Reader):
        """Token after token, over S old slots and T new tokens.

        Returns:
            Which of the S + T are in the slots at the end [B, S, K]; their retention [B, S, K], None where attention has no part in
            it; and `evict_at` [B, S + T, K].
        """
        retention = _ranking(reader)
        slots = index.shape[1]
        number = lambda first, like: jnp.zeros_like(like) + first + jnp.arange(like.shape[1], dtype=jnp.int32)[:, None]  # noqa: E731
        carried = (lambda entries: entries) if retention.attends else partial(_needed, retention=retention)
        kept = {"entries": carried(old), "index": index, "slot": number(0, index)}
        new = {"entries": carried(entry), "index": _indices(entry, place)}
        new["slot"] = number(slots, new["index"])
        kept, new, query = jax.lax.stop_gradient((kept, new, reader.query))

        def step(kept, at):
            new, query, now, start = at
            token = jax.tree.map(lambda leaf: leaf[:, None], new)
            both = beside(kept, token)
            goes = jnp.arange(slots + 1)[:, None] == self._last(both, now, start, retention)[:, None]  # [B, S + 1, K]
            gone = jnp.sum(jnp.where(goes, both["slot"], 0), axis=1)
            here = lambda leaf: goes[:, :-1].reshape(*goes[:, :-1].shape, *(1,) * (leaf.ndim - 3))  # noqa: E731
            kept = jax.tree.map(lambda leaf, token: jnp.where(here(leaf), token, leaf), kept, token)
            if retention.attends:
                alone = replace(reader, query=jax.tree.map(lambda leaf: leaf[:, None], query))
                when = Place(now[None], (now - start)[:, None])
                value = _after_reading(kept["entries"], kept["index"], when, alone)
                kept = kept | {"entries": kept["entries"] | {"retention": value}}
            return kept, gone

        by_token = lambda leaf: jnp.moveaxis(leaf, 1, 0)  # noqa: E731
        times = (*jax.tree.map(by_token, (new, query)), place.index, by_token(place.start))
        kept, gone = jax.lax.scan(step, kept, times)  # gone: [T, B, K]
        never = jnp.concatenate([index, new["index"]], axis=1) * 0 + NEVER
        record = jax.vmap(jax.vmap(lambda never, gone: never.at[gone].set(place.index), (1, 1), 1))
        value = kept["entries"]["retention"] if retention.attends else None
        return kept["slot"], value, record(never, by_token(gone))

    def _last(self, both: dict, now: jax.Array, start: jax.Array, retention: Ranking) -> Int[Array, "B K"]:
        """Which of the candidates goes: an empty one, or else the lowest."""
        index = both["index"]
        ranks = self._ranks(Candidates(_needed(both["entries"], retention), index, now, start), retention)
        lowest = ranks == jnp.min(ranks, axis=1, keepdims=True)
        return jnp.argmin(jnp.where(lowest, index, NEVER), axis=1)

    def _best(self, both: Entry, index: jax.Array, slots: int, place: Place, retention: Ranking) -> Int[Array, "B S K"]:
        """Which candidates are the highest `slots` at the time of the last token."""
        candidates = Candidates(_needed(both, retention), index, place.index[-1], place.start[:, -1])
        at = jnp.broadcast_to(jnp.arange(index.shape[1], dtype=jnp.int32)[:, None], index.shape)
        *_, order = jax.lax.sort((-self._ranks(candidates, retention), -index, at), dimension=1, num_keys=2)
        return order[:, :slots]

    def _ranks(self, candidates: Candidates, retention: Ranking) -> Float[Array, "B S K"]:
        index, held = candidates.index, candidates.held
        protected = (index - candidates.start[:, None, None] < self.sinks) | (candidates.now - index < self.recent)
        ranks = jnp.where(protected, jnp.inf, jax.lax.stop_gradient(retention.rank(candidates)))
        return jnp.where(held, ranks, -jnp.inf)


def _ranking(reader: Reader) -> Ranking:
    assert isinstance(reader.retention, Ranking)  # others are refused when the configuration is read
    return reader.retention


def _needed(entries: Entry, retention: Ranking) -> Entry:
    return {name: entries[name] for name in retention.needs}


def _indices(entry: Entry, place: Place) -> Int[Array, "B T K"]:
    """The row index of each new token, laid out as its gate is."""
    return jnp.zeros_like(entry["retention"], jnp.int32) + place.index[:, None]


def _slots(retention: Ranking, entries: Entry, index: jax.Array, evict_at: jax.Array | None) -> Slots:
    return Slots(entries, index, bias=retention.bias(entries), slope=retention.slope(entries), evict_at=evict_at)


def _after_reading(entries: Entry, index: jax.Array, place: Place, reader: Reader) -> Float[Array, "B S K"]:
    """The slots' retention once the query has read them."""
    weights, _ = attention_to(entries, Mask(place.index, place.start, index), reader)
    return _ranking(reader).attended(entries["retention"], weights)
