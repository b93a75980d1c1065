"""Dynamic mask attention, DMA (arXiv 2508.02124, Doge): a token's value says how much it is attended to, and whether at all."""

from typing import TYPE_CHECKING, Literal, override

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from mnemax.errors import UserError
from mnemax.layers.linear import linear
from mnemax.layers.memories import Entry, Place
from mnemax.layers.retention import Ranking, RankingConfig
from mnemax.sharding import shard, use

if TYPE_CHECKING:
    from mnemax.configs.schema import ModelConfig
    from mnemax.layers.param import Init
    from mnemax.layers.projections import ProjectionConfig


class DynamicMaskConfig(RankingConfig):
    """Retention: delta = A softplus(W v), v of all key heads. It is added to the token's logits, and the highest are kept."""

    kind: Literal["dynamic_mask"] = "dynamic_mask"
    amplitude: float = 0.0
    """A of every head before training. 0, as published: at first the memory is a sliding window."""

    @override
    def build(self, model: "ModelConfig", projection: "ProjectionConfig", init: "Init") -> "DynamicMask":
        if "v" not in (entry := projection.entry(model)):
            raise UserError(
                f"retention dynamic_mask looks at values, and projection {getattr(projection, 'kind', '?')} writes none."
            )
        return DynamicMask(self, entry["v"].shape, init)


class DynamicMask(Ranking):
    """A number that a token is given once: the logits' bias and the rank. Ranking has no gradient, the bias has."""

    def __init__(self, config: DynamicMaskConfig, value: tuple[int, ...], init: "Init"):
        heads, width = value
        self.w = init.matrix((heads, width, heads), ("kv_heads", "head", "latent"), contract=2)
        self.amplitude = init.vector((heads,), ("latent",), config.amplitude)

    @override
    def __call__(self, x, entry: Entry, place: Place) -> Entry:
        u = linear("btkh,khn->btn", entry["v"], self.w, axes=("batch", "seq", "latent"), dtype=jnp.float32)
        return {"retention": shard(use(self.amplitude, jnp.float32) * jax.nn.softplus(u), "batch", "seq", "kv_heads")}

    @override
    def bias(self, entries: Entry) -> Float[Array, "B S K"]:
        return entries["retention"]
