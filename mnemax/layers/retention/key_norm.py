"""Key norm (Devoto et al. 2024, arXiv 2406.11430): keys of a low L2 norm tend to be attended to, and are kept."""

from typing import Literal, override

import jax.numpy as jnp

from mnemax.layers.memories import Entry, Place
from mnemax.layers.retention import Ranking, RankingConfig


class KeyNormConfig(RankingConfig):
    """Retention: -|k|."""

    kind: Literal["key_norm"] = "key_norm"

    @override
    def build(self, model, projection, init) -> "KeyNorm":
        return KeyNorm()


class KeyNorm(Ranking):
    """A number that a token is given once."""

    @override
    def __call__(self, x, entry: Entry, place: Place) -> Entry:
        return {"retention": -jnp.linalg.norm(entry["k"].astype(jnp.float32), axis=-1)}
