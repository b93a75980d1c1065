"""The one entry to attention: chooses an implementation, and runs it shard by shard on an Explicit mesh."""

from dataclasses import replace

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Int

from mnemax.kernels import reference, xla
from mnemax.kernels.mask import Mask
from mnemax.sharding import on_explicit_mesh

IMPLEMENTATIONS = {"auto": xla.attend, "xla": xla.attend, "reference": reference.attend}


def attend(
    q: Float[Array, "B T N H"],
    k: Float[Array, "B S K H"],
    v: Float[Array, "B S K Hv"],
    *,
    mask: Mask,
    scale: float,
    softcap: float | None = None,
    key_bias: Float[Array, "B S K"] | None = None,
    key_slope: Float[Array, "B S K"] | None = None,
    evict_at: Int[Array, "B S K"] | None = None,
    implementation: str = "auto",
) -> tuple[Float[Array, "B T N Hv"], Float[Array, "B T N"]]:
    """Attention of N query heads over K key/value heads (N a multiple of K), logits and softmax in float32.

    Args:
        mask: which keys a query sees.
        scale: multiplies the logits.
        softcap: c of c tanh(logit / c), applied first; then bias and slope are added, then the mask is applied.
        key_bias: added to the logits of a key.
        key_slope: times the key's age, the query's row index less its own, added to its logits.
        evict_at: row index from which on queries no longer see the key; it has no gradient.
        implementation: a name in `IMPLEMENTATIONS`.

    Returns:
        The output in q's dtype, and the log-sum-exp of each query's logits in float32. A query that sees no key gives exactly 0
        and -inf.

    Raises:
        ValueError: the head counts do not divide, or the implementation is unknown.
    """
    if q.shape[2] % k.shape[2]:
        raise ValueError(f"{q.shape[2]} query heads are not a multiple of {k.shape[2]} key heads")
    if implementation not in IMPLEMENTATIONS:
        raise ValueError(f"unknown implementation '{implementation}'; known: {', '.join(IMPLEMENTATIONS)}")

    def run(q, k, v, mask, bias, slope):
        options = {"scale": scale, "softcap": softcap, "key_bias": bias, "key_slope": slope}
        return IMPLEMENTATIONS[implementation](q, k, v, mask=mask, **options)

    bias, slope = (None if x is None else x.astype(jnp.float32) for x in (key_bias, key_slope))
    out, lse = _by_shard(run, q, k, v, mask if evict_at is None else replace(mask, evict_at=evict_at), bias, slope)
    return out.astype(q.dtype), lse


def _by_shard(run, q: jax.Array, k: jax.Array, v: jax.Array, mask: Mask, bias: jax.Array | None, slope: jax.Array | None):
    if not on_explicit_mesh():
        return run(q, k, v, mask, bias, slope)
    batch, _, heads, _ = jax.typeof(q).sharding.spec
    copies = 1 if heads is None else _copies(q.shape[2], k.shape[2], jax.typeof(q).sharding.mesh.shape[heads])

    def by_head(x: jax.Array) -> jax.Array:
        whole = x if copies == 1 else jnp.repeat(x, copies, axis=2)
        return jax.sharding.reshard(whole, P(batch, None, heads, *(None,) * (x.ndim - 3)))

    def by_row(x: jax.Array) -> jax.Array:
        return jax.sharding.reshard(x, P(batch, None)) if x.shape[0] == q.shape[0] else x

    k, v, bias, slope, evict_at = jax.tree.map(by_head, (k, v, bias, slope, mask.evict_at))
    k_index = by_head(mask.k_index) if mask.k_index.ndim == 3 else by_row(mask.k_index)
    mask = replace(mask, q_start=by_row(mask.q_start), k_index=k_index, evict_at=evict_at)
    inputs = (q, k, v, mask, bias, slope)
    specs = jax.tree.map(lambda x: jax.typeof(x).sharding.spec, inputs)
    return jax.shard_map(run, in_specs=specs, out_specs=(P(batch, None, heads, None), P(batch, None, heads)))(*inputs)


def _copies(N: int, K: int, shards: int) -> int:
    """The fewest copies of K key heads, each of whole query heads, that split evenly over shards of N query heads."""
    return next(c for c in range(1, N // K + 1) if (N // K) % c == 0 and K * c % shards == 0)
