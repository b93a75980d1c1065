"""The one entry to attention: chooses an implementation, and runs it shard by shard on an Explicit mesh."""

from typing import Literal

import jax
import jax.numpy as jnp
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float

from mnemax.kernels import reference, xla
from mnemax.kernels.mask import Mask

type Implementation = Literal["auto", "reference", "xla"]

IMPLEMENTATIONS = {"auto": xla.attend, "xla": xla.attend, "reference": reference.attend}


def attend(
    q: Float[Array, "B T N H"],
    k: Float[Array, "B S K H"],
    v: Float[Array, "B S K Hv"],
    *,
    mask: Mask,
    scale: float,
    softcap: float | None = None,
    return_lse: bool = False,
    implementation: Implementation = "auto",
) -> Float[Array, "B T N Hv"] | tuple[Float[Array, "B T N Hv"], Float[Array, "B T N"]]:
    """Attention of N query heads over K key/value heads (N a multiple of K), logits and softmax in float32.

    Args:
        mask: which keys a query sees.
        scale: multiplies the logits.
        softcap: c of c tanh(logit / c), applied before the mask.
        return_lse: also return the log-sum-exp of each query's logits, float32; -inf where it sees no key (its output is exactly 0).

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
    out = out.astype(q.dtype)
    return (out, lse) if return_lse else out


def _by_shard(run, q: jax.Array, k: jax.Array, v: jax.Array, mask: Mask):
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.size == 1 or any(kind != AxisType.Explicit for kind in mesh.axis_types):
        return run(q, k, v, mask)
    batch, _, heads, _ = jax.typeof(q).sharding.spec
    if heads is not None and jax.typeof(k).sharding.spec[2] != heads:  # fewer key heads than shards: one a query head
        k, v = (jax.sharding.reshard(jnp.repeat(x, q.shape[2] // x.shape[2], axis=2), P(batch, None, heads, None)) for x in (k, v))
    by_head = P(batch, None, heads, None)
    by_row = [P(batch, *(None,) * (x.ndim - 1)) if x.shape[0] == q.shape[0] else P() for x in (mask.q_start, mask.k_index)]
    mask_spec = Mask(P(), by_row[0], by_row[1], mask.window, mask.sinks, mask.aligned)
    return jax.shard_map(run, in_specs=(by_head, by_head, by_head, mask_spec), out_specs=(by_head, P(batch, None, heads)))(
        q, k, v, mask
    )
