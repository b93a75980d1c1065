"""Which keys a query sees.

A row holds documents one after another, so a document is an interval of row indices. A query at index i whose document begins at
index s sees the keys in [s, i]: this one comparison is causality, packing, padding and empty slots at once, for parallel rows and
for any set of memory slots alike.
"""

from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Shaped

NEVER = jnp.iinfo(jnp.int32).max  # of `evict_at`, and past every row index


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["q_index", "q_start", "k_index", "evict_at"],
    meta_fields=["window", "sinks", "aligned", "strict"],
)
@dataclass(frozen=True)
class Mask:
    """A query sees a key of its own document that is not later than itself, not evicted and, under a window, near enough or a sink.

    Attributes:
        q_index: row index of each query.
        q_start: row index at which its document begins.
        k_index: row index of the token in each slot, a head apart where the memory keeps different tokens a head; negative: empty.
        window: how many latest tokens are seen, the query itself counted; None: all.
        sinks: first tokens of the document that are seen in spite of the window.
        aligned: keys are the queries' own tokens in the same order, so that blocks above the diagonal need no work.
        evict_at: row index of the first query that no longer sees the key, a head apart; None: nothing is evicted.
        strict: a query does not see its own token either.
    """

    q_index: Int[Array, " T"]
    q_start: Int[Array, "B T"]
    k_index: Int[Array, "B_or_1 S"] | Int[Array, "B S K"]
    window: int | None = None
    sinks: int = 0
    aligned: bool = False
    evict_at: Int[Array, "B S K"] | None = None
    strict: bool = False

    def allowed(self) -> Bool[Array, "B K_or_1 T S"]:
        """The mask itself, with a head axis of 1 where all heads keep the same tokens."""
        k = self._keys()
        q, start = self.q_index[None, None, :, None], self.q_start[:, None, :, None]
        seen = (start <= k) & (k < q if self.strict else k <= q)
        if self.window is not None:
            near = q - k < self.window
            seen &= (near | (k - start < self.sinks)) if self.sinks else near
        if self.evict_at is not None:
            seen &= q < by_key(self.evict_at)[:, :, 0]
        return seen

    def age(self) -> Float[Array, "B_or_1 K_or_1 T S"]:
        """How many tokens each key lies behind each query."""
        return (self.q_index[:, None] - self._keys()).astype(jnp.float32)

    def _keys(self) -> Int[Array, "B_or_1 K_or_1 1 S"]:
        return self.k_index[:, None, None, :] if self.k_index.ndim == 2 else by_key(self.k_index)[:, :, 0]

    def block(self, queries: slice, keys: slice) -> "Mask":
        """The mask of some queries against some keys."""
        return replace(
            self,
            q_index=self.q_index[queries],
            q_start=self.q_start[:, queries],
            k_index=self.k_index[:, keys],
            aligned=False,
            evict_at=None if self.evict_at is None else self.evict_at[:, keys],
        )


def by_key(x: Shaped[Array, "B S K"]) -> Shaped[Array, "B K 1 1 S"]:
    """One number a key and head, as it meets logits [B, K, G, T, S]."""
    return jnp.moveaxis(x, -1, 1)[:, :, None, None, :]
