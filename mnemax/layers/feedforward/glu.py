"""Gated linear units (Shazeer 2020, arXiv 2002.05202): SwiGLU with silu, GeGLU with gelu."""

from typing import TYPE_CHECKING, Literal, override

from jaxtyping import Array, Float

from mnemax.configs.base import PositiveInt
from mnemax.layers.feedforward import Activation, Aux, FeedForward, FeedForwardConfig, activation
from mnemax.layers.linear import linear

if TYPE_CHECKING:
    from mnemax.configs.schema import ModelConfig
    from mnemax.layers.param import Init


class GLUConfig(FeedForwardConfig):
    """W_down (act(W_gate x) * W_up x)."""

    kind: Literal["glu"] = "glu"
    width: PositiveInt
    activation: Activation = "silu"

    @override
    def build(self, model: "ModelConfig", init: "Init") -> "GLU":
        return GLU(self, model, init)


class GLU(FeedForward):
    """y = W_down (act(W_gate x) * W_up x)."""

    def __init__(self, config: GLUConfig, model: "ModelConfig", init: "Init"):
        D, F = model.width, config.width
        self.activation = config.activation
        self.w_gate = init.matrix((D, F), ("embed", "ffn"))
        self.w_up = init.matrix((D, F), ("embed", "ffn"))
        self.w_down = init.matrix((F, D), ("ffn", "embed"), residual=True)

    @override
    def __call__(self, x: Float[Array, "B T D"]) -> tuple[Float[Array, "B T D"], Aux]:
        hidden = ("batch", "seq", "ffn")
        gate = linear("btd,df->btf", x, self.w_gate, axes=hidden)
        up = linear("btd,df->btf", x, self.w_up, axes=hidden)
        y = activation(self.activation)(gate) * up
        return linear("btf,fd->btd", y, self.w_down, axes=("batch", "seq", "residual")), {}
