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
    """x += post(attention(pre(x))); x += post(feedforward(pre(x))), with the norms that the placement asks for."""

    def __init__(self, config: "LayerConfig", model: "ModelConfig", init: "Init"):
        def norm(when: str) -> RMSNorm | None:
            wanted = model.norm.placement in (when, "both")
            return RMSNorm((model.width,), ("residual",), model.norm, init) if wanted else None

        self.attention_norm = norm("pre")
        self.attention = Attention(config.attention, model, init)
        self.attention_post_norm = norm("post")
        self.feedforward_norm = norm("pre")
        self.feedforward = config.feedforward.build(model, init)
        self.feedforward_post_norm = norm("post")

    def __call__(
        self, x: Float[Array, "B T D"], place: Place, state: State, bus: Bus, implementation: str, *, last: bool = False
    ) -> tuple[Float[Array, "B T_or_1 D"], State, Bus, Aux]:
        """New residual stream (`last`: of the last token alone), state, bus, and auxiliary scalars of both parts."""
        y, state, bus, total = self.attention(_apply(self.attention_norm, x), place, state, bus, implementation, last=last)
        x = (x[:, -1:] if last else x) + _apply(self.attention_post_norm, y)
        y, aux = self.feedforward(_apply(self.feedforward_norm, x))
        return x + _apply(self.feedforward_post_norm, y), state, bus, add_aux(total, aux)


def _apply(norm: RMSNorm | None, x: jax.Array) -> jax.Array:
    return x if norm is None else norm(x)
