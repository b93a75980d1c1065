"""Dynamic memory compression (Nawrot et al. 2024, arXiv 2403.09636): slots are weighted means of runs of tokens.

Token t merges with the slot before it (alpha_t = 1) or begins one (alpha_t = 0), each key head for itself; omega_t is its weight:

    z_t = alpha_t z_{t-1} + omega_t        mean_t = (alpha_t z_{t-1} mean_{t-1} + omega_t k_t) / z_t        the same for v

A query sees its own token's mean so far, and of earlier tokens those whose successor did not merge. The forward pass is always
that, which is what decoding does. Gradients are those of the soft form, in which alpha is the decision's sigmoid and the mean of
token j fades by log(1 - alpha_{j+1}) for the queries after it.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Literal, override

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from mnemax.configs.base import NonNegativeInt, PositiveInt
from mnemax.kernels.mask import NEVER, Mask
from mnemax.kernels.merge import merge
from mnemax.layers.memories import Entry, EntrySpec, Memory, MemoryConfig, Place, Slots, State, beside, laid_out_as

if TYPE_CHECKING:
    from mnemax.configs.schema import AttentionConfig
    from mnemax.layers.projections import Projection

GONE = -1e4  # the logit of a mean that is certainly merged away


class DMCConfig(MemoryConfig):
    """Runs of tokens merged into weighted means, as each key head decides; of t tokens at most `1 + slack + (t - 1) // least`."""

    kind: Literal["dmc"] = "dmc"
    takes: ClassVar[frozenset[str]] = frozenset({"decision", "importance"})
    needs: ClassVar[frozenset[str]] = frozenset({"decision", "importance"})
    least: PositiveInt = 1
    """Tokens a slot that are certain: where a head has no slot left, a token merges whatever was decided. 1: never forced."""
    slack: NonNegativeInt = 16
    """Slots beyond that."""

    @override
    def refuses(self, attention: "AttentionConfig") -> str | None:
        reason = attention.projection.unpaired
        return None if reason is None else f"averages keys and values, and {reason}"

    @override
    def build(self, entry: EntrySpec, init) -> "DMC":
        return DMC(self)

    def slots(self, tokens: int) -> int:
        """The most slots that so many tokens have."""
        return min(tokens, 1 + self.slack + (tokens - 1) // self.least)

    @override
    def cache_bytes(self, batch: int, capacity: int, entry: EntrySpec) -> int:
        k, v = entry["k"], entry["v"]
        heads, width = k.shape[0], k.shape[-1] + v.shape[-1]
        slot = k.shape[-1] * k.dtype.itemsize + v.shape[-1] * v.dtype.itemsize + 4  # with an int32 row index
        return batch * heads * (self.slots(capacity) * slot + 4 * width + 8)  # the open slot's sums, its weight, the slots in use

    @override
    def keys_read(self, context: int) -> float:
        return self.slots(context)


def runs(
    alpha: Float[Array, "B T K"], weight: Float[Array, "B T K"], values: Float[Array, "B T K H"], before: jax.Array | None = None
) -> tuple[Float[Array, "B T K H"], Float[Array, "B T K"]]:
    """Sums of weight times value, and of weight, since the last alpha of 0: s_t = alpha_t s_{t-1} + weight_t value_t.

    `before` [B, K, H + 1]: the sums before the first token.
    """
    x = jnp.concatenate([values.astype(jnp.float32), jnp.ones_like(weight)[..., None]], axis=-1) * weight[..., None]
    if before is not None:
        x = x.at[:, 0].add(alpha[:, 0, :, None] * before)

    def join(a, b):
        return a[0] * b[0], b[0][..., None] * a[1] + b[1]

    _, sums = jax.lax.associative_scan(join, (alpha, x), axis=1)
    return sums[..., :-1], sums[..., -1]


class DMC(Memory):
    """State: the means so far [B, S, K, ...] with the row index of their latest token, how many of them are in use, and the float32
    sums of the open one."""

    def __init__(self, config: DMCConfig):
        self.config = config

    @override
    def init(self, batch: int, capacity: int, entry: EntrySpec) -> State:
        slots, heads = self.config.slots(capacity), entry["decision"].shape[0]
        k, v = entry["k"], entry["v"]
        return {
            "means": {name: jnp.zeros((batch, slots, *leaf.shape), leaf.dtype) for name, leaf in (("k", k), ("v", v))},
            "index": jnp.full((batch, slots, heads), -1, jnp.int32),
            "open": jnp.zeros((batch, heads, k.shape[-1] + v.shape[-1] + 1), jnp.float32),
            "used": jnp.zeros((batch, heads), jnp.int32),
        }

    def merges(
        self, decision: Float[Array, "B T K"], place: Place, used: Int[Array, "B K"]
    ) -> tuple[Bool[Array, "B T K"], Bool[Array, "B T K"], Int[Array, "B T K"]]:
        """Which tokens merge, which of them are forced to, and how many slots are in use after each."""
        position = place.positions[..., None]
        room = 1 + self.config.slack + position // self.config.least

        def step(used, at):
            wants, position, room = at
            used = jnp.where(position == 0, 0, used)
            full = used >= room
            merge = (wants | full) & (position > 0)
            used = used + ~merge
            return used, (merge, full & (position > 0), used)

        times = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 1, 0), (decision > 0, position, room))
        _, after = jax.lax.scan(step, used, times)
        return jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, 1), after)

    @override
    def view(self, entry: Entry, place: Place, reader) -> "Merged":
        used = jnp.zeros_like(entry["decision"][:, 0], jnp.int32)
        merged, forced, _ = self.merges(entry["decision"], place, used)
        return Merged(entry, merged, forced, place)

    @override
    def update(self, state: State, entry: Entry, place: Place, reader) -> tuple[State, Slots]:
        gate = entry["decision"]
        used = laid_out_as(state["used"][:, None], gate)[:, 0]
        merged, _, used = self.merges(gate, place, used)
        both = jnp.concatenate([entry["k"], entry["v"]], axis=-1)
        before = laid_out_as(state["open"][:, None], both)[:, 0]
        sums, weight = runs(merged.astype(jnp.float32), entry["importance"], both, before)
        means = _split(sums / weight[..., None], entry)
        old = jax.tree.map(laid_out_as, {"means": state["means"], "index": state["index"]}, {"means": means, "index": used})
        index = jnp.zeros_like(used) + place.index[:, None]
        new = self._written(old, means, index, merged, used, place)
        state = {**new, "open": jnp.concatenate([sums, weight[..., None]], axis=-1)[:, -1], "used": used[:, -1]}
        if index.shape[1] == 1:
            return state, Slots(new["means"], new["index"])
        # The first of several tokens still see the open mean as it was, and each the mean as far as itself.
        goes = (old["index"] == place.index[0] - 1) & merged[:, :1]
        evict_at = jnp.concatenate([jnp.where(goes, place.index[0], NEVER), gone_at(merged, place)], axis=1)
        return state, Slots(beside(old["means"], means), beside(old["index"], index), evict_at=evict_at)

    def _written(self, old: State, means: Entry, index: jax.Array, merged: jax.Array, used: jax.Array, place: Place) -> State:
        """The slots with the last mean of every run in its place. Slots of documents that have ended are overwritten in time."""
        slots = old["index"].shape[1]
        last = (gone_at(merged, place) == NEVER) & (place.start == place.start[:, -1:])[..., None]
        at = jnp.where(last, used - 1, slots)
        put = jax.vmap(jax.vmap(lambda old, at, new: old.at[at].set(new.astype(old.dtype), mode="drop"), (1, 1, 1), 1))
        return jax.tree.map(lambda old, new: put(old, at, new), old, {"means": means, "index": index})


def gone_at(merged: Bool[Array, "B T K"], place: Place) -> Int[Array, "B T K"]:
    """The row index from which on a token's mean is no longer seen: that of the next token, if it merges."""
    following = jnp.concatenate([merged[:, 1:], jnp.zeros_like(merged[:, :1])], axis=1)
    return jnp.where(following, place.index[:, None] + 1, NEVER)


def _split(both: Float[Array, "B T K H"], entry: Entry) -> Entry:
    k, v = jnp.split(both, [entry["k"].shape[-1]], axis=-1)
    return {"k": k.astype(entry["k"].dtype), "v": v.astype(entry["v"].dtype)}


def means_of(entry: Entry, alpha: Float[Array, "B T K"]) -> Entry:
    """The mean of each token's run as far as the token."""
    sums, weight = runs(alpha, entry["importance"], jnp.concatenate([entry["k"], entry["v"]], axis=-1))
    return _split(sums / weight[..., None], entry)


@partial(jax.tree_util.register_dataclass, data_fields=["entry", "merged", "forced", "place"], meta_fields=[])
@dataclass(frozen=True)
class Merged:
    """The view of whole rows: their entries, which tokens merge, and which must."""

    entry: Entry
    merged: Bool[Array, "B T K"]
    forced: Bool[Array, "B T K"]
    place: Place

    def read(self, query, projection: "Projection", place: Place, implementation: str):
        """Hard decisions forward, soft ones backward."""
        hard, soft = (partial(form, implementation) for form in (self._hard, self._soft))
        return _straight_through(hard, soft, (projection, query, self.entry), self)

    @staticmethod
    def _hard(implementation: str, projection: "Projection", query, entry: Entry, view: "Merged"):
        place = view.place
        means = means_of(entry, view.merged.astype(jnp.float32))
        mask = Mask(place.index, place.start, place.index[None], aligned=True)
        return projection.attend(query, means, mask, implementation, evict_at=gone_at(view.merged, place))

    @staticmethod
    def _soft(implementation: str, projection: "Projection", query, entry: Entry, view: "Merged"):
        place, a = view.place, entry["decision"]
        begins = place.positions[..., None] == 0
        alpha = jnp.where(begins, 0.0, jnp.where(view.forced, 1.0, jax.nn.sigmoid(a)))
        means = means_of(entry, alpha)
        fade = jnp.where(view.forced, GONE, jax.nn.log_sigmoid(-a))[:, 1:]
        fade = jnp.pad(fade, ((0, 0), (0, 1), (0, 0)))
        # A token sees its own mean unfaded: read alone, beside those of the tokens before it.
        mask = Mask(place.index, place.start, place.index[None], aligned=True)
        earlier = projection.attend(query, means, replace(mask, strict=True), implementation, key_bias=fade)
        own = projection.attend(query, means, replace(mask, window=1), implementation)
        return merge(earlier, own)


def _straight_through(hard, soft, inputs: tuple, view: Merged):
    """hard(*inputs, view) with the gradient of soft(*inputs, view)."""

    @jax.custom_vjp
    def run(inputs, view):
        return hard(*inputs, view)

    def forward(inputs, view):
        _, pull = jax.vjp(lambda inputs: soft(*inputs, view), inputs)
        return hard(*inputs, view), pull

    run.defvjp(forward, lambda pull, cotangents: (*pull(cotangents), None))
    return run(inputs, view)
