"""A block: attention, feed-forward, and the norms around them."""

from typing import TYPE_CHECKING

import jax
from flax import nnx
from jaxtyping import Array, Float

from mnemax.layers.attention import Attention, Bus
from mnemax.layers.feedforward import Aux, add_aux
from mnemax.layers.memories import Place, State
from mnemax.layers.norm import RMSNorm

if TYPE_CHECKING:
    from mnemax.configs.schema import LayerConfig, ModelConfig
    from mnemax.layers.param import Init


class Block(nnx.Module):
    """x += post(attention(pre(x))); x += post(feedforward(pre(x))), with the norms that the placement asks for.

    A layer that only writes adds nothing in the first place, one without a feed-forward nothing in the second.
    """

    def __init__(self, config: "LayerConfig", model: "ModelConfig", init: "Init"):
        def norm(when: str, wanted: bool = True) -> RMSNorm | None:
            placed = model.norm.placement in (when, "both")
            return RMSNorm((model.width,), ("residual",), model.norm, init) if wanted and placed else None

        feeds = config.feedforward is not None
        self.attention_norm = norm("pre")
        self.attention = Attention(config.attention, model, init)
        self.attention_post_norm = norm("post", config.attention.attends)
        self.feedforward_norm = norm("pre", feeds)
        self.feedforward = None if config.feedforward is None else config.feedforward.build(model, init)
        self.feedforward_post_norm = norm("post", feeds)

    def __call__(
        self, x: Float[Array, "B T D"], place: Place, state: State, bus: Bus, implementation: str, *, last: bool = False
    ) -> tuple[Float[Array, "B T_or_1 D"], State, Bus, Aux]:
        """New residual stream (`last`: of the last token alone), state, bus, and auxiliary scalars of both parts."""
        y, state, bus, total = self.attention(_apply(self.attention_norm, x), place, state, bus, implementation, last=last)
        x = x[:, -1:] if last else x
        x = x if y is None else x + _apply(self.attention_post_norm, y)
        if self.feedforward is None:
            return x, state, bus, total
        y, aux = self.feedforward(_apply(self.feedforward_norm, x))
        return x + _apply(self.feedforward_post_norm, y), state, bus, add_aux(total, aux)


def _apply(norm: RMSNorm | None, x: jax.Array) -> jax.Array:
    return x if norm is None else norm(x)
