"""KeyDiff (Park et al. 2025, arXiv 2504.15364): keys unlike the mean of those that are kept."""

from typing import Literal, override

import jax.numpy as jnp
from jaxtyping import Array, Float

from mnemax.layers.retention import Candidates, Ranking, RankingConfig


class KeyDiffConfig(RankingConfig):
    """Rank: -cos(k, mean of k / |k|), the mean over the candidates."""

    kind: Literal["keydiff"] = "keydiff"

    @override
    def build(self, model, projection, init) -> "KeyDiff":
        return KeyDiff()


class KeyDiff(Ranking):
    """Ranks change with what is kept, but follow from keys alone."""

    needs = ("k",)

    @override
    def rank(self, candidates: Candidates) -> Float[Array, "B S K"]:
        held = candidates.held[..., None]
        k = jnp.where(held, candidates.entries["k"].astype(jnp.float32), 0.0)
        k = k / jnp.maximum(jnp.linalg.norm(k, axis=-1, keepdims=True), 1e-12)
        mean = jnp.sum(k, axis=1, keepdims=True)  # but for a factor, which ranks do not depend on
        return -jnp.sum(k * mean, axis=-1)
