"""TOVA (Oren et al. 2024, arXiv 2401.06104): the token goes to which the latest query paid least attention."""

from typing import ClassVar, Literal, override

import jax.numpy as jnp
from jaxtyping import Array, Float

from mnemax.layers.retention import Ranking, RankingConfig


class TOVAConfig(RankingConfig):
    """Retention: the latest query's attention, averaged over all heads, so that all of them keep the same tokens."""

    by_queries: ClassVar[bool] = True
    kind: Literal["tova"] = "tova"

    @override
    def build(self, model, projection, init) -> "TOVA":
        return TOVA()


class TOVA(Ranking):
    """One query's attention, forgotten at the next."""

    attends = True

    @override
    def attended(self, retention: Float[Array, "B S K"], weights: Float[Array, "B S K"]) -> Float[Array, "B S K"]:
        return jnp.zeros_like(retention) + jnp.mean(weights, axis=-1, keepdims=True)
