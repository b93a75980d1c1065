"""H2O, heavy hitters (Zhang et al. 2023, arXiv 2306.14048): tokens that have got most attention since they came."""

from typing import ClassVar, Literal, override

from jaxtyping import Array, Float

from mnemax.layers.retention import Ranking, RankingConfig


class H2OConfig(RankingConfig):
    """Retention: the attention that a token has got so far, summed. The paper gives half of the budget to recent tokens."""

    by_queries: ClassVar[bool] = True
    kind: Literal["h2o"] = "h2o"

    @override
    def build(self, model, projection, init) -> "H2O":
        return H2O()


class H2O(Ranking):
    """A running sum over queries and over the heads of a group."""

    attends = True

    @override
    def attended(self, retention: Float[Array, "B S K"], weights: Float[Array, "B S K"]) -> Float[Array, "B S K"]:
        return retention + weights
