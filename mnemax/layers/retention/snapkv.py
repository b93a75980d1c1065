"""SnapKV (Li et al. 2024, arXiv 2404.14469): what the end of the prompt attends to."""

from typing import ClassVar, Literal, override

import jax.numpy as jnp
from jaxtyping import Array, Float

from mnemax.configs.base import PositiveInt
from mnemax.kernels.mask import Mask
from mnemax.layers.memories import Entry, Place, Reader, row_index
from mnemax.layers.retention import Ranking, RankingConfig, attention_to


class SnapKVConfig(RankingConfig):
    """Retention: the mean attention of the prompt's last `window` queries, averaged over `pool` neighbours."""

    by_queries: ClassVar[bool] = True
    kind: Literal["snapkv"] = "snapkv"
    window: PositiveInt = 64
    """Queries that look back. Set the memory's `recent` to as many, so that their own tokens are kept, as in the paper."""
    pool: PositiveInt = 5

    @override
    def build(self, model, projection, init) -> "SnapKV":
        return SnapKV(self.window, self.pool)


class SnapKV(Ranking):
    """Several tokens written in one call are a prompt. A token that is decoded has 0, since nobody has looked back at it."""

    deferred = True

    def __init__(self, window: int, pool: int):
        self.window, self.pool = window, pool

    @override
    def observe(self, entry: Entry, place: Place, reader: Reader) -> Entry:
        length = place.positions.shape[1]
        if length == 1:
            return entry
        window = min(self.window, length)
        looks = (jnp.arange(length) >= length - window).astype(jnp.float32) / window
        mask = Mask(place.index, place.start, row_index(place), aligned=True)
        weights, _ = attention_to(entry, mask, reader, looks)
        return entry | {"retention": pooled(weights, self.pool)}


def pooled(weights: Float[Array, "B T K"], size: int) -> Float[Array, "B T K"]:
    """The mean over `size` neighbours, what lies outside of the row being 0."""
    padded = jnp.pad(weights, ((0, 0), ((size - 1) // 2, size // 2), (0, 0)))
    return jnp.mean(jnp.stack([padded[:, i : i + weights.shape[1]] for i in range(size)]), axis=0)
