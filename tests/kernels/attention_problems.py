"""Attention problems whose shapes divide no block."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from mnemax.kernels.mask import Mask


@dataclass(frozen=True)
class Problem:
    """Inputs of `attend`. Rows see nothing, a part or all, by the mask; `terms` are key_bias, key_slope and evict_at."""

    q: jax.Array
    k: jax.Array
    v: jax.Array
    mask: Mask
    scale: float
    softcap: float | None
    terms: dict[str, jax.Array]

    @property
    def options(self) -> dict:
        return {"scale": self.scale, "softcap": self.softcap}


def problem(
    T: int,
    S: int | None = None,
    *,
    heads: tuple[int, int] = (4, 2),
    widths: tuple[int, int] = (16, 16),
    documents: tuple[int, ...] = (),
    window: int | None = None,
    sinks: int = 0,
    softcap: float | None = None,
    by_head: bool = False,
    empty: bool = False,
    terms: tuple[str, ...] = (),
) -> Problem:
    """S None: keys are the queries' own, aligned. Otherwise S slots hold tokens in random order, a third of them empty.

    Args:
        heads: N and K.
        widths: of keys and of values.
        documents: in the second row, indices at which documents begin; the first row is one document.
        by_head: each key head keeps other tokens.
        empty: no slot of the first row holds anything.
        terms: which terms the keys have, other ones for each key head.
    """
    rng = np.random.default_rng(0)
    B, (N, K), (H, Hv), slots = 2, heads, widths, T if S is None else S
    past = max(slots - T, 0)
    starts = np.zeros((B, past + T), np.int32)
    for start in documents:
        starts[1, start:] = start
    if S is None:
        index = np.arange(T, dtype=np.int32)[None]
    else:
        order = np.stack([[rng.permutation(max(past + T, S))[:S] for _ in range(K if by_head else 1)] for _ in range(B)])
        order = np.where((order < past + T) & (rng.random(order.shape) > 0.33), order, -1).astype(np.int32)
        index = np.moveaxis(order, 1, 2) if by_head else order[:, 0]
        if empty:
            index[0] = -1
    places = jnp.arange(past, past + T), jnp.asarray(starts[:, past:]), jnp.asarray(index)
    shapes = (B, T, N, H), (B, slots, K, H), (B, slots, K, Hv)
    q, k, v = (jnp.asarray(rng.standard_normal(shape), jnp.float32) for shape in shapes)
    mask = Mask(*places, window=window, sinks=sinks, aligned=S is None)
    by_slot = (B, slots, K)
    held = np.broadcast_to(index if index.ndim == 3 else index[..., None], by_slot)
    every = {
        "key_bias": jnp.asarray(rng.standard_normal(by_slot), jnp.float32),
        "key_slope": jnp.asarray(rng.standard_normal(by_slot) / (past + T), jnp.float32),
        "evict_at": jnp.asarray(held + rng.integers(0, past + T, by_slot), jnp.int32),
    }
    return Problem(q, k, v, mask, 0.3, softcap, {name: every[name] for name in terms})


ALL = ("key_bias", "key_slope", "evict_at")


PROBLEMS = {
    "one token": problem(1),
    "seven": problem(7, heads=(3, 1)),
    "130": problem(130, heads=(4, 4)),
    "300, packed": problem(300, documents=(1, 129, 250)),
    "300, window": problem(300, window=37, documents=(140,)),
    "window wider than the row": problem(7, window=50),
    "window of one": problem(130, window=1),
    "window and sinks": problem(300, window=20, sinks=3, documents=(140, 290)),
    "soft cap": problem(130, softcap=2.0),
    "values narrower": problem(130, widths=(24, 8)),
    "values wider": problem(7, widths=(8, 40)),
    "decode step": problem(1, 70),
    "decode step, a head apart": problem(1, 70, by_head=True, heads=(6, 3)),
    "chunk over slots": problem(7, 130, documents=(100,)),
    "long chunk over slots": problem(130, 200, window=31, sinks=2, by_head=True, documents=(90, 150)),
    "fewer slots than queries": problem(130, 9),
    "nothing to see": problem(7, 20, empty=True, softcap=3.0),
    "bias": problem(130, terms=("key_bias",)),
    "slope, packed": problem(300, documents=(1, 129, 250), terms=("key_slope",)),
    "evicted": problem(300, documents=(140,), terms=("evict_at",)),
    "all terms, soft cap": problem(130, softcap=2.0, heads=(8, 2), terms=ALL),
    "all terms, window and sinks": problem(300, window=20, sinks=3, documents=(140,), terms=ALL),
    "all terms, decode step": problem(1, 70, by_head=True, heads=(6, 3), terms=ALL),
    "all terms over slots": problem(130, 200, by_head=True, documents=(90, 150), terms=ALL),
    "all terms, nothing to see": problem(7, 20, empty=True, softcap=3.0, terms=ALL),
}
