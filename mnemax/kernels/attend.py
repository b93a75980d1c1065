"""The one entry to attention: chooses an implementation, and runs it shard by shard on an Explicit mesh."""

import jax
import jax.numpy as jnp
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float

from mnemax.kernels import reference, xla
from mnemax.kernels.mask import Mask

IMPLEMENTATIONS = {"auto": xla.attend, "xla": xla.attend, "reference": reference.attend}


def attend(
    q: Float[Array, "B T N H"],
    k: Float[Array, "B S K H"],
    v: Float[Array, "B S K Hv"],
    *,
    mask: Mask,
    scale: float,
    softcap: float | None = None,
    implementation: str = "auto",
) -> tuple[Float[Array, "B T N Hv"], Float[Array, "B T N"]]:
    """Attention of N query heads over K key/value heads (N a multiple of K), logits and softmax in float32.

    Args:
        mask: which keys a query sees.
        scale: multiplies the logits.
        softcap: c of c tanh(logit / c), applied before the mask.
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

    def run(q, k, v, mask):
        return IMPLEMENTATIONS[implementation](q, k, v, mask=mask, scale=scale, softcap=softcap)

    out, lse = _by_shard(run, q, k, v, mask)
    return out.astype(q.dtype), lse


def _by_shard(run, q: jax.Array, k: jax.Array, v: jax.Array, mask: Mask):
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.size == 1 or any(kind != AxisType.Explicit for kind in mesh.axis_types):
        return run(q, k, v, mask)
    batch, _, heads, _ = jax.typeof(q).sharding.spec
    if heads is not None and jax.typeof(k).sharding.spec[2] != heads:  # fewer than shards: one a query head
        k, v = (jax.sharding.reshard(jnp.repeat(x, q.shape[2] // x.shape[2], axis=2), P(batch, None, heads, None)) for x in (k, v))
    by_head = P(batch, None, heads, None)
    by_row = lambda x: P(batch, *(None,) * (x.ndim - 1)) if x.shape[0] == q.shape[0] else P()  # noqa: E731
    specs = jax.tree.unflatten(jax.tree.structure(mask), [P(), by_row(mask.q_start), by_row(mask.k_index)])
    over_shards = jax.shard_map(run, in_specs=(by_head, by_head, by_head, specs), out_specs=(by_head, P(batch, None, heads)))
    return over_shards(q, k, v, mask)
