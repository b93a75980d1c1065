"""Random eviction: the control that every other policy has to beat."""

from typing import Literal, override

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, UInt

from mnemax.configs.base import NonNegativeInt
from mnemax.layers.memories import Entry, Place
from mnemax.layers.retention import Ranking, RankingConfig
from mnemax.sharding import shard


class RandomConfig(RankingConfig):
    """A uniform number a position and key head, drawn once: what is kept of n tokens is a uniform sample of them."""

    kind: Literal["random"] = "random"
    seed: NonNegativeInt = 0

    @override
    def build(self, model, projection, init) -> "Random":
        return Random(self.seed)


class Random(Ranking):
    """The numbers depend on nothing but seed, position and head, so that decoding draws what whole rows draw."""

    def __init__(self, seed: int):
        self.seed = seed

    @override
    def __call__(self, x, entry: Entry, place: Place) -> Entry:
        heads = jnp.arange(entry["k"].shape[2], dtype=jnp.uint32)
        return {"retention": shard(uniform(place.positions[..., None], heads, self.seed), "batch", "seq", "kv_heads")}


def uniform(position: Int[Array, "B T 1"], head: UInt[Array, " K"], seed: int) -> Float[Array, "B T K"]:
    """Pseudo-random numbers of [0, 1): the finaliser of MurmurHash3 (Appleby, public domain) over position, head and seed."""

    def mix(h: jax.Array) -> jax.Array:
        h = (h ^ (h >> 16)) * jnp.uint32(0x85EBCA6B)
        h = (h ^ (h >> 13)) * jnp.uint32(0xC2B2AE35)
        return h ^ (h >> 16)

    hashed = mix(mix(mix(position.astype(jnp.uint32)) + head) + jnp.uint32(seed % 2**32))
    return (hashed >> 8).astype(jnp.float32) / 2**24
