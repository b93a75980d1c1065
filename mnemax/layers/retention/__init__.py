"""Who decides what is kept. One file a kind; this one holds the contract."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, override

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from mnemax.configs.base import Config
from mnemax.kernels.mask import Mask
from mnemax.layers.feedforward import Aux
from mnemax.layers.memories import Entry, EntrySpec, Place, Reader
from mnemax.layers.projections import gate_spec
from mnemax.sharding import shard

if TYPE_CHECKING:
    from mnemax.configs.schema import ModelConfig
    from mnemax.layers.param import Init
    from mnemax.layers.projections import ProjectionConfig


class RetentionConfig(Config):
    """The base of every retention's configuration."""

    gates: ClassVar[frozenset[str]] = frozenset()
    """The gates that it makes: leaves [B, T, K] that join the entry."""
    by_queries: ClassVar[bool] = False
    """Whether what is kept follows from the queries of the layer that writes."""

    def build(self, model: "ModelConfig", projection: "ProjectionConfig", init: "Init") -> "Retention":
        raise NotImplementedError

    def entry(self, model: "ModelConfig", projection: "ProjectionConfig") -> EntrySpec:
        """Shapes and dtypes of one token's gates, without [B, T]."""
        return {}


class Retention(nnx.Module):
    """Says how each token is to be kept."""

    def __call__(self, x: Float[Array, "B T D"], entry: Entry, place: Place) -> Entry:
        """The gates of these tokens, each [B, T, K]; `entry` is what the projection made."""
        return {}

    def aux(self, gates: Entry, place: Place) -> Aux:
        """What the gates of whole rows add to the loss, by name."""
        return {}


@dataclass(frozen=True)
class Candidates:
    """Tokens of which a memory keeps some, a key head apart, at the time of one query of each row.

    Attributes:
        entries: the leaves of their entries that the retention `needs`, each [B, S, K, ...].
        index: row index of each token; negative: no token.
        now: row index of the query.
        start: row index at which its document begins.
    """

    entries: Entry
    index: Int[Array, "B S K"]
    now: Int[Array, ""]
    start: Int[Array, " B"]

    @property
    def held(self) -> Bool[Array, "B S K"]:
        """Which of them are tokens of the query's document."""
        return self.index >= jnp.maximum(self.start, 0)[:, None, None]

    @property
    def age(self) -> Float[Array, "B S K"]:
        return (self.now - self.index).astype(jnp.float32)


class RankingConfig(RetentionConfig):
    """The base of those that rank tokens for a memory of bounded size. A token carries one float32 a key head, its `retention`."""

    gates: ClassVar[frozenset[str]] = frozenset({"retention"})

    @override
    def entry(self, model: "ModelConfig", projection: "ProjectionConfig") -> EntrySpec:
        return {"retention": gate_spec(key_heads(model, projection))}


class Ranking(Retention):
    """Ranks tokens: where there are too many, the lowest goes.

    Attributes:
        needs: the leaves of entries that ranks depend on.
        attends: ranks follow from attention that is paid along the way, as `attended` says.
        deferred: the tokens of one call (a prompt) all read one another, and only then are they ranked.
        foresees: ranks follow from what comes after, so that there is no decoding.
    """

    needs: tuple[str, ...] = ("retention",)
    attends: bool = False
    deferred: bool = False
    foresees: bool = False

    @override
    def __call__(self, x: Float[Array, "B T D"], entry: Entry, place: Place) -> Entry:
        """`retention` [B, T, K] in float32, what each token begins with; default: 0."""
        return {"retention": shard(jnp.zeros(entry["k"].shape[:3], jnp.float32), "batch", "seq", "kv_heads")}

    def observe(self, entry: Entry, place: Place, reader: Reader) -> Entry:
        """The entries of a call's tokens, their retention set by what the queries of the same call say of them."""
        return entry

    def rank(self, candidates: Candidates) -> Float[Array, "B S K"]:
        """Higher is kept. What is no candidate (not `held`) may have any rank."""
        return candidates.entries["retention"]

    def attended(self, retention: Float[Array, "B S K"], weights: Float[Array, "B S K"]) -> Float[Array, "B S K"]:
        """The new retention of tokens to which a query has paid these attention weights, summed over its heads."""
        return retention

    def bias(self, entries: Entry) -> Float[Array, "B S K"] | None:
        """What is added to the logits of the tokens."""
        return None

    def slope(self, entries: Entry) -> Float[Array, "B S K"] | None:
        """What is added to them for each token of age."""
        return None


def key_heads(model: "ModelConfig", projection: "ProjectionConfig") -> int:
    """K of what a projection writes."""
    return projection.entry(model)["k"].shape[0]


def attention_to(
    entries: Entry, mask: Mask, reader: Reader, of: Float[Array, " T"] | None = None
) -> tuple[Float[Array, "B S K"], Float[Array, "B T N"]]:
    """The attention weights that tokens get, summed over queries and over the heads of a group; and the queries' log-sum-exps.

    A weight is the derivative of its query's log-sum-exp with respect to a bias of the key's logits, so that this holds for any
    projection and needs no array of queries by keys. Both are without gradients. `of`: how much each query counts; default: 1.
    """
    entries, query = jax.lax.stop_gradient((entries, reader.query))
    zero = jnp.zeros_like(entries["k"][..., 0], jnp.float32)
    attend = lambda bias: reader.projection.attend(query, entries, mask, reader.implementation, key_bias=bias)[1]  # noqa: E731
    lse, weights = jax.vjp(attend, zero)
    counts = jnp.ones_like(lse) * (1.0 if of is None else of[:, None])
    return jax.lax.stop_gradient((weights(counts)[0], lse))
