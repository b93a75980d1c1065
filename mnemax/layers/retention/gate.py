"""The retention gate of TRIM-KV (arXiv 2512.03324): how much of a token is left after each further token, learned.

beta in (0, 1) is a token's gate. Its logits fall by log beta with each token of age, which is what trains the gate; and ranked is
age * log beta, what is left of the token. The capacity loss holds the sum of what is left of all tokens below a number of slots.
"""

from typing import TYPE_CHECKING, Literal, override

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from mnemax.configs.base import NonNegativeFloat, PositiveInt
from mnemax.layers.feedforward import Aux
from mnemax.layers.linear import linear
from mnemax.layers.memories import Entry, Place
from mnemax.layers.retention import Candidates, Ranking, RankingConfig, key_heads
from mnemax.sharding import shard, use

if TYPE_CHECKING:
    from mnemax.configs.schema import ModelConfig
    from mnemax.layers.param import Init
    from mnemax.layers.projections import ProjectionConfig

QUERIES = 128  # of one turn of the capacity loss


class GateConfig(RankingConfig):
    """Retention: log beta = logsigmoid(W_2 silu(W_1 x + b_1) + b)."""

    kind: Literal["gate"] = "gate"
    capacity: PositiveInt
    """M of the capacity loss, in slots; the memory's budget, as a rule."""
    weight: NonNegativeFloat = 1.0
    """Of the capacity loss. 0: none."""
    hidden: PositiveInt = 512
    bias: float = 18.0
    """b before training. High: at first nothing fades, and attention is that of all that is kept."""
    fades: bool = True
    """Whether logits fall with age. False: the gate ranks, and attention is plain; for decoding a gate that has been trained."""

    @override
    def build(self, model: "ModelConfig", projection: "ProjectionConfig", init: "Init") -> "Gate":
        return Gate(self, model, key_heads(model, projection), init)


class Gate(Ranking):
    """Two layers on the attention's input."""

    def __init__(self, config: GateConfig, model: "ModelConfig", heads: int, init: "Init"):
        self.capacity, self.weight, self.fades = config.capacity, config.weight, config.fades
        self.w_1 = init.matrix((model.width, config.hidden), ("embed", "ffn"))
        self.b_1 = init.vector((config.hidden,), ("ffn",))
        self.w_2 = init.matrix((config.hidden, heads), ("ffn", "latent"))
        self.b = init.vector((heads,), ("latent",), config.bias)

    @override
    def __call__(self, x: Float[Array, "B T D"], entry: Entry, place: Place) -> Entry:
        hidden = linear("btd,df->btf", x, self.w_1, axes=("batch", "seq", "ffn"))
        hidden = jax.nn.silu(hidden + use(self.b_1, hidden.dtype))
        u = linear("btf,fk->btk", hidden, self.w_2, axes=("batch", "seq", "latent"), dtype=jnp.float32)
        return {"retention": shard(jax.nn.log_sigmoid(u + use(self.b, jnp.float32)), "batch", "seq", "kv_heads")}

    @override
    def rank(self, candidates: Candidates) -> Float[Array, "B S K"]:
        return candidates.age * candidates.entries["retention"]

    @override
    def slope(self, entries: Entry) -> Float[Array, "B S K"] | None:
        return entries["retention"] if self.fades else None

    @override
    def aux(self, gates: Entry, place: Place) -> Aux:
        if self.weight == 0:
            return {}
        return {"capacity": self.weight * capacity_loss(gates["retention"], place, self.capacity)}


def capacity_loss(log_beta: Float[Array, "B T K"], place: Place, capacity: int) -> Float[Array, ""]:
    """The mean over tokens and heads of max(0, S_t - M) / t, with S_t what is left at t: the sum of beta_j^(t - j) over j <= t.

    t is counted from 1 in each document. Some queries at a time, made again in the backward pass: memory is linear in T.
    """
    batch, length, heads = log_beta.shape
    turns = -(-length // QUERIES)
    pad = lambda a, by: jnp.pad(a, ((0, 0),) * (a.ndim - 1) + ((0, by),))  # noqa: E731
    extra = turns * QUERIES - length
    index = pad(place.index, extra).reshape(turns, QUERIES)
    # Queries that are added see nothing, as if their document began after every key.
    start = jnp.pad(place.start, ((0, 0), (0, extra)), constant_values=jnp.iinfo(jnp.int32).max)
    start = jnp.moveaxis(start.reshape(batch, turns, QUERIES), 1, 0)

    @jax.checkpoint
    def some(queries) -> jax.Array:
        i, start = queries
        age = (i[:, None] - place.index).astype(jnp.float32)  # [queries, T]
        seen = (age >= 0) & (place.index >= start[..., None])  # [B, queries, T]
        faded = jnp.where(seen[..., None], age[..., None] * log_beta[:, None], -jnp.inf)
        excess = jax.nn.relu(jnp.sum(jnp.exp(faded), axis=2) - capacity)  # [B, queries, K]
        return jnp.sum(excess / jnp.maximum(i - start + 1, 1)[..., None].astype(jnp.float32))

    return jnp.sum(jax.lax.map(some, (index, start))) / (batch * length * heads)
