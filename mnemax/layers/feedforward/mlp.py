"""Two matrices and an activation; squared ReLU is So et al. 2021 (Primer, arXiv 2109.08668)."""

from typing import TYPE_CHECKING, Literal, override

from jaxtyping import Array, Float

from mnemax.configs.base import PositiveInt
from mnemax.layers.feedforward import Activation, Aux, FeedForward, FeedForwardConfig, activation
from mnemax.layers.linear import linear

if TYPE_CHECKING:
    from mnemax.configs.schema import ModelConfig
    from mnemax.layers.param import Init


class MLPConfig(FeedForwardConfig):
    """W_down act(W_up x)."""

    kind: Literal["mlp"] = "mlp"
    width: PositiveInt
    activation: Activation = "relu2"

    @override
    def build(self, model: "ModelConfig", init: "Init") -> "MLP":
        return MLP(self, model, init)


class MLP(FeedForward):
    """y = W_down act(W_up x)."""

    def __init__(self, config: MLPConfig, model: "ModelConfig", init: "Init"):
        D, F = model.width, config.width
        self.activation = config.activation
        self.w_up = init.matrix((D, F), ("embed", "ffn"))
        self.w_down = init.matrix((F, D), ("ffn", "embed"), residual=True)

    @override
    def __call__(self, x: Float[Array, "B T D"]) -> tuple[Float[Array, "B T D"], Aux]:
        y = activation(self.activation)(linear("btd,df->btf", x, self.w_up, axes=("batch", "seq", "ffn")))
        return linear("btf,fd->btd", y, self.w_down, axes=("batch", "seq", "residual")), {}
