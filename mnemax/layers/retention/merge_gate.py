"""The merge gate of key-value means (arXiv 2605.09877): how heavily a token weighs in the slot that it joins."""

from typing import TYPE_CHECKING, ClassVar, Literal, override

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from mnemax.layers.linear import linear
from mnemax.layers.memories import Entry, EntrySpec, Place
from mnemax.layers.projections import gate_spec
from mnemax.layers.retention import Retention, RetentionConfig, key_heads

if TYPE_CHECKING:
    from mnemax.configs.schema import ModelConfig
    from mnemax.layers.param import Init
    from mnemax.layers.projections import ProjectionConfig


class MergeGateConfig(RetentionConfig):
    """g = 1 + elu(W_g x), a positive weight a token and key head."""

    gates: ClassVar[frozenset[str]] = frozenset({"merge"})
    kind: Literal["merge_gate"] = "merge_gate"

    @override
    def build(self, model: "ModelConfig", projection: "ProjectionConfig", init: "Init") -> "MergeGate":
        return MergeGate(init.matrix((model.width, key_heads(model, projection)), ("embed", "kv_heads")))

    @override
    def entry(self, model: "ModelConfig", projection: "ProjectionConfig") -> EntrySpec:
        return {"merge": gate_spec(key_heads(model, projection))}


class MergeGate(Retention):
    """One matrix without a bias."""

    def __init__(self, w_g: nnx.Param):
        self.w_g = w_g

    @override
    def __call__(self, x: Float[Array, "B T D"], entry: Entry, place: Place) -> Entry:
        return {"merge": 1 + jax.nn.elu(linear("btd,dk->btk", x, self.w_g, axes=("batch", "seq", "kv_heads"), dtype=jnp.float32))}
