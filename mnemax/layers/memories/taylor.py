"""Based's linear attention: exp(s) replaced by its Taylor polynomial 1 + s + s^2/2, which is a product of features.

Arora et al. 2024 (arXiv 2402.18668), section 4.1. With s = q^T k (the scale of logits in q) and
phi(x) = [1, x_i, x_i^2 / sqrt(2), x_i x_j for i < j], phi(q)^T phi(k) = 1 + s + s^2/2, which is positive:

    S_t = S_{t-1} + phi(k_t) [v_t, 1]^T        [o_t z_t, z_t] = S_t^T phi(q_t)
"""

from dataclasses import dataclass
from functools import partial
from typing import Literal, override

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from mnemax.kernels import recurrence
from mnemax.layers.memories import Entry, EntrySpec, Memory, Place, State
from mnemax.layers.memories.linear import MatrixConfig


class TaylorConfig(MatrixConfig):
    """Softmax attention by its second-order Taylor polynomial, which is one matrix a head. Keys should be narrow (Based: 16)."""

    normalised = True

    kind: Literal["taylor"] = "taylor"

    @override
    def build(self, entry: EntrySpec, init) -> "Taylor":
        return Taylor(self.chunk)

    @override
    def size(self, entry: EntrySpec) -> int:
        heads, width = entry["v"].shape
        return heads * features(entry["k"].shape[-1]) * (width + 1)


def features(width: int) -> int:
    """How many numbers phi has of a vector of this width."""
    return 1 + width + width * (width + 1) // 2


def phi(x: Float[Array, "*batch H"]) -> Float[Array, "*batch F"]:
    """The features of a vector."""
    i, j = np.triu_indices(x.shape[-1])
    pairs = x[..., i] * x[..., j] * jnp.asarray(np.where(i == j, 0.5**0.5, 1.0), x.dtype)
    return jnp.concatenate([jnp.ones_like(x[..., :1]), x, pairs], axis=-1)


@partial(jax.tree_util.register_dataclass, data_fields=["written"], meta_fields=[])
@dataclass(frozen=True)
class TaylorView:
    """What each token's state was."""

    written: recurrence.Written

    def read(self, query, projection, place: Place, implementation: str):
        """The weighted mean of values, and the log of its weights' sum."""
        out = recurrence.read(phi(projection.plain(query).astype(jnp.float32)), self.written)
        z = out[..., -1]
        return (out[..., :-1] / z[..., None]).astype(query.dtype), jnp.log(z)


class Taylor(Memory):
    """State: S [B, K, F, Hv + 1] in float32; the last column sums the features themselves."""

    def __init__(self, chunk: int):
        self.chunk = chunk

    @override
    def init(self, batch: int, capacity: int, entry: EntrySpec) -> State:
        heads, width = entry["v"].shape
        return {"S": jnp.zeros((batch, heads, features(entry["k"].shape[-1]), width + 1), jnp.float32)}

    @override
    def update(self, state: State, entry: Entry, place: Place, reader) -> tuple[State, TaylorView]:
        k, v = entry["k"].astype(jnp.float32), entry["v"].astype(jnp.float32)
        v = jnp.concatenate([v, jnp.ones_like(v[..., :1])], axis=-1)
        decay = jnp.zeros_like(v[..., 0])
        S, written = recurrence.write(phi(k), v, decay, None, state["S"], place.index, place.start, self.chunk)
        return {"S": S}, TaylorView(written)
