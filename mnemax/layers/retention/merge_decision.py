"""Dynamic memory compression's decision (arXiv 2403.09636): does a token begin a slot, or merge with the one before it?"""

from typing import TYPE_CHECKING, ClassVar, Literal, override

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from pydantic import Field

from mnemax.configs.base import NonNegativeFloat, PositiveFloat
from mnemax.layers.feedforward import Aux
from mnemax.layers.linear import linear
from mnemax.layers.memories import Entry, EntrySpec, Place
from mnemax.layers.projections import gate_spec
from mnemax.layers.retention import Retention, RetentionConfig, key_heads
from mnemax.sharding import use

if TYPE_CHECKING:
    from mnemax.configs.schema import ModelConfig
    from mnemax.layers.param import Init
    from mnemax.layers.projections import ProjectionConfig


class MergeDecisionConfig(RetentionConfig):
    """Two scalars a token and key head: `decision` (merge where positive) and `importance`, its weight in the merged mean."""

    gates: ClassVar[frozenset[str]] = frozenset({"decision", "importance"})

    kind: Literal["merge_decision"] = "merge_decision"
    compression: float = Field(ge=1)
    """Tokens a slot that the loss asks for, over all heads together: some may keep all if others keep less."""
    weight: NonNegativeFloat = 1.0
    """Of that loss. 0: none."""
    bias: float = -3.0
    """Of the decision before training. Low: at first hardly a token merges."""
    temperature: PositiveFloat = 1.0
    """Of the decision's sigmoid."""

    @override
    def build(self, model: "ModelConfig", projection: "ProjectionConfig", init: "Init") -> "MergeDecision":
        return MergeDecision(self, model.width, key_heads(model, projection), init)

    @override
    def entry(self, model: "ModelConfig", projection: "ProjectionConfig") -> EntrySpec:
        return dict.fromkeys(("decision", "importance"), gate_spec(key_heads(model, projection)))


class MergeDecision(Retention):
    """One matrix for each scalar, where the published retrofit takes a channel of the keys and one of the queries."""

    def __init__(self, config: MergeDecisionConfig, width: int, heads: int, init: "Init"):
        self.config = config
        self.w_a = init.matrix((width, heads), ("embed", "kv_heads"))
        self.b_a = init.vector((heads,), ("kv_heads",), config.bias)
        self.w_o = init.matrix((width, heads), ("embed", "kv_heads"))

    @override
    def __call__(self, x: Float[Array, "B T D"], entry: Entry, place: Place) -> Entry:
        a, o = (linear("btd,dk->btk", x, w, axes=("batch", "seq", "kv_heads"), dtype=jnp.float32) for w in (self.w_a, self.w_o))
        a = (a + use(self.b_a, jnp.float32)) / self.config.temperature
        return {"decision": a, "importance": jax.nn.sigmoid(o) + 1e-6}

    @override
    def aux(self, gates: Entry, place: Place) -> Aux:
        """max(0, 1 - 1/compression - share of tokens that decide to merge), hard decisions with the gradient of soft ones.

        A document's first token has nothing to merge with, whatever it decides.
        """
        if self.config.weight == 0:
            return {}
        a = gates["decision"]
        soft = jax.nn.sigmoid(a)
        merged = jnp.mean((soft + jax.lax.stop_gradient((a > 0) - soft)) * (place.positions[..., None] > 0))
        return {"compression": self.config.weight * jax.nn.relu(1 - 1 / self.config.compression - merged)}
