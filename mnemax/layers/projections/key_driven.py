"""Key-driven grouped-query attention (KDGQA, arXiv 2408.08454): key heads of larger norm are read by more query heads.

    n_j = |W_k[j]|        m = (n - min n) / (max n - min n)        a_j = max(1, round(N m_j / sum m)), mended to sum to N

Query heads are dealt out in order, a_j of them to key head j.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Literal, override

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Shaped

from mnemax.kernels.mask import Mask
from mnemax.layers.memories import Entry
from mnemax.layers.projections import Part
from mnemax.layers.projections.gqa import GQA, GQAConfig
from mnemax.sharding import shard, use

if TYPE_CHECKING:
    from mnemax.configs.schema import ModelConfig
    from mnemax.layers.param import Init


class KeyDrivenConfig(GQAConfig):
    """gqa whose query heads are dealt out to key heads by the norms of their weights."""

    kind: Literal["key_driven"] = "key_driven"  # pyrefly: ignore[bad-override]

    @override
    def build(self, model: "ModelConfig", init: "Init", *, part: Part) -> "KeyDriven":
        return KeyDriven(self, model, init, part)

    @property
    @override
    def remade(self) -> str | None:
        return "projection key_driven deals its queries out to keys when it attends"

    @override
    def cannot_read(self, writer) -> str | None:
        return "key_driven queries are dealt out by the weights of their own keys"


class KeyDriven(GQA):
    """The norms are those of the weights: the same for every batch and token, at decoding as in training."""

    @override
    def attend(self, query: jax.Array, entries: Entry, mask: Mask, implementation: str, **terms):
        dealt = allocation(use(self.w_k, jnp.float32), self.config.heads)
        entries, terms = jax.tree.map(lambda leaf: _by_query_head(leaf, dealt), (entries, terms))
        if mask.k_index.ndim == 3:
            mask = replace(mask, k_index=_by_query_head(mask.k_index, dealt))
        return super().attend(query, entries, mask, implementation, **terms)


def allocation(w_k: Float[Array, "D K H"], heads: int) -> Int[Array, " N"]:
    """The key head that each of `heads` query heads reads; it has no gradient."""
    n = shard(jnp.sqrt(jnp.sum(jnp.square(jax.lax.stop_gradient(w_k)), axis=(0, 2))), "slots")  # every device deals all heads
    m = (n - n.min()) / jnp.maximum(n.max() - n.min(), 1e-12)
    a = jnp.maximum(1, jnp.round(heads * m / jnp.maximum(m.sum(), 1e-12))).astype(jnp.int32)

    def mend(_, a: jax.Array) -> jax.Array:
        over = a.sum() - heads
        return jnp.where(over > 0, a.at[jnp.argmax(a)].add(-1), jnp.where(over < 0, a.at[jnp.argmin(a)].add(1), a))

    a = jax.lax.fori_loop(0, heads + len(a), mend, a)
    return jnp.searchsorted(jnp.cumsum(a), jnp.arange(heads), side="right")


def _by_query_head(leaf: Shaped[Array, "B S K *rest"], dealt: Int[Array, " N"]) -> Shaped[Array, "B S N *rest"]:
    rest = ("head",) * (leaf.ndim - 3)
    whole = shard(leaf, "batch", "seq", "slots", *rest)  # each device may need any of the heads
    return shard(jnp.take(whole, dealt, axis=2), "batch", "seq", "heads", *rest)
