"""Attention in plain XLA: queries in unrolled chunks; keys above the diagonal or out of the window are never touched.

Memory is linear in the sequence: only outputs and log-sum-exps are kept, and the backward pass makes each chunk's probabilities
again from them, as FlashAttention-2 does (Dao 2023, arXiv 2307.08691, algorithm 2). With P the probabilities, dO the cotangent of
the output and dL that of the log-sum-exp, row by row:

    dV = P^T dO        dS = P * (dO V^T - rowsum(dO * O) + dL)        dQ = scale dS K        dK = scale dS^T Q

and, for what a key adds to its logits, d bias = colsum(dS) and d slope = colsum(dS * age), summed over a group's queries.

Everything is head-major, [B, K, G, T, H], inside: plain batched products, which every backend runs fastest.
"""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float

from mnemax.kernels.mask import Mask, by_key
from mnemax.sharding import on_cpu

CHUNK = 128  # measured best of 64..512 on CPU; longer sequences use at most MOST_CHUNKS, so that compile time stays flat
MOST_CHUNKS = 16
CACHE = 2**21  # bytes of logits that one turn of `_by_rows` works on
ATTENTION = "attention"  # the name under which a checkpoint policy knows outputs and log-sum-exps
HIDDEN = -1e30  # the logit of a key that a query does not see; finite, which is faster than -inf on CPU

type Terms = tuple[jax.Array | None, jax.Array | None]
"""What a key adds to its logits: a bias, and a slope that its age multiplies; each [B, S, K] in float32, or None."""


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
) -> tuple[Float[Array, "B T N Hv"], Float[Array, "B T N"]]:
    """As `reference.attend`; products in the inputs' dtype, accumulated in float32."""
    B, T, N, H = q.shape
    K = k.shape[2]
    q = jnp.transpose(q.reshape(B, T, K, N // K, H), (0, 2, 3, 1, 4))
    k, v = jnp.transpose(k, (0, 2, 1, 3)), jnp.transpose(v, (0, 2, 1, 3))
    out, lse = _by_rows(partial(_attention, (scale, softcap)), q, k, v, mask, (key_bias, key_slope))
    out = jnp.transpose(out, (0, 3, 1, 2, 4)).reshape(B, T, N, v.shape[-1])
    return out, jnp.transpose(lse, (0, 3, 1, 2)).reshape(B, T, N)


def _by_rows(attention, q, k, v, mask: Mask, terms: Terms):
    """On a CPU, a few rows after another: their logits then stay in cache, which was measured 2.5 times as fast."""
    B, K, G, T, _ = q.shape
    if T == 1 or not on_cpu():
        return attention(q, k, v, mask, terms)
    row_bytes = 4 * K * G * min(T, CHUNK) * k.shape[2]
    rows = next(n for n in range(B, 0, -1) if B % n == 0 and (n == 1 or n * row_bytes <= CACHE))
    if rows == B:
        return attention(q, k, v, mask, terms)
    k_index = jnp.broadcast_to(mask.k_index, (B, *mask.k_index.shape[1:]))

    def some(group):
        q, k, v, start, index, evict_at, terms = group
        return attention(q, k, v, replace(mask, q_start=start, k_index=index, evict_at=evict_at), terms)

    whole = (q, k, v, mask.q_start, k_index, mask.evict_at, terms)
    groups = jax.tree.map(lambda a: a.reshape(B // rows, rows, *a.shape[1:]), whole)
    return jax.tree.map(lambda a: a.reshape(B, *a.shape[2:]), jax.lax.map(some, groups))


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(options, q, k, v, mask: Mask, terms: Terms):
    parts = [
        _chunk(options, q[..., queries, :], k[..., keys, :], v[..., keys, :], mask.block(queries, keys), _of(terms, keys))
        for queries, keys in _chunks(q.shape[3], k.shape[2], mask)
    ]
    return jnp.concatenate([out for out, _ in parts], axis=3), jnp.concatenate([lse for _, lse in parts], axis=3)


def _forward(options, q, k, v, mask: Mask, terms: Terms):
    # Named for `training.remat`: with these kept, recomputation never runs the attention again.
    out, lse = (checkpoint_name(x, ATTENTION) for x in _attention(options, q, k, v, mask, terms))
    return (out, lse), (q, k, v, mask, terms, out, lse)


def _backward(options, saved, cotangents):
    q, k, v, mask, terms, out, lse = saved
    d_out, d_lse = cotangents
    # rowsum(dO * O) - dL: what is subtracted from every dP of a row.
    delta = jnp.sum(d_out.astype(jnp.float32) * out.astype(jnp.float32), axis=-1) - d_lse
    dq, dk, dv = [], jnp.zeros(k.shape, jnp.float32), jnp.zeros(v.shape, jnp.float32)
    d_terms = jax.tree.map(jnp.zeros_like, terms)
    for queries, keys in _chunks(q.shape[3], k.shape[2], mask):
        at = (..., queries, slice(None))
        inputs = q[at], k[..., keys, :], v[..., keys, :], mask.block(queries, keys), _of(terms, keys)
        one = _chunk_gradients(options, *inputs, lse[..., queries], d_out[at], delta[..., queries])
        dq.append(one[0])
        dk = dk.at[..., keys, :].add(one[1])
        dv = dv.at[..., keys, :].add(one[2])
        d_terms = jax.tree.map(lambda total, part: total.at[:, keys].add(part), d_terms, one[3])  # noqa: B023
    return jnp.concatenate(dq, axis=3), dk.astype(k.dtype), dv.astype(v.dtype), None, d_terms


_attention.defvjp(_forward, _backward)


def _of(terms: Terms, keys: slice) -> Terms:
    return jax.tree.map(lambda term: term[:, keys], terms)


def _chunks(T: int, S: int, mask: Mask) -> list[tuple[slice, slice]]:
    """The chunks of queries, each with the keys it can see: where rows are aligned, none later and none out of the window."""
    size = max(CHUNK, -(-T // MOST_CHUNKS))
    chunks = []
    for start in range(0, T, size):
        stop = min(start + size, T)
        first = 0 if not mask.aligned or mask.window is None or mask.sinks else max(0, start - mask.window + 1)
        chunks.append((slice(start, stop), slice(first, stop if mask.aligned else S)))
    return chunks


def _capped(options, q, k) -> Float[Array, "B K G T S"]:
    """Logits scaled and capped, in float32."""
    scale, softcap = options
    B, K, G, T, H = q.shape
    s = jnp.einsum("bkqh,bksh->bkqs", q.reshape(B, K, G * T, H), k, preferred_element_type=jnp.float32) * scale
    s = s.reshape(B, K, G, T, k.shape[2])
    return s if softcap is None else softcap * jnp.tanh(s / softcap)


def _masked(s, mask: Mask, terms: Terms) -> Float[Array, "B K G T S"]:
    """What the keys add to capped logits, then the mask."""
    bias, slope = terms
    if bias is not None:
        s = s + by_key(bias)
    if slope is not None:
        s = s + by_key(slope) * mask.age()[:, :, None]
    return jnp.where(mask.allowed()[:, :, None], s, HIDDEN)


def _chunk(options, q, k, v, mask: Mask, terms: Terms):
    B, K, G, T, _ = q.shape
    s = _masked(_capped(options, q, k), mask, terms)
    m = jnp.max(s, axis=-1, keepdims=True)
    p = jnp.exp(s - m)
    z = jnp.sum(p, axis=-1)
    o = jnp.einsum("bkqs,bksh->bkqh", p.astype(v.dtype).reshape(B, K, G * T, -1), v, preferred_element_type=jnp.float32)
    seen = m[..., 0] > HIDDEN / 2
    o = o.reshape(B, K, G, T, -1) * jnp.where(seen, 1 / z, 0.0)[..., None]
    return o.astype(v.dtype), jnp.where(seen, jnp.log(z) + m[..., 0], -jnp.inf)


def _chunk_gradients(options, q, k, v, mask: Mask, terms: Terms, lse, d_out, delta):
    scale, softcap = options
    B, K, G, T, _ = q.shape
    flat = lambda x: x.reshape(B, K, G * T, x.shape[-1])  # noqa: E731
    capped = _capped(options, q, k)
    s = _masked(capped, mask, terms)
    p = jnp.exp(s - jnp.where(jnp.isfinite(lse), lse, 0.0)[..., None])  # a row that sees no key: exp(HIDDEN) = 0
    dp = jnp.einsum("bkqh,bksh->bkqs", flat(d_out), v, preferred_element_type=jnp.float32).reshape(s.shape)
    ds = p * (dp - delta[..., None])
    d_terms = _term_gradients(ds, mask, terms)
    if softcap is not None:
        ds = ds * (1 - jnp.square(jnp.where(mask.allowed()[:, :, None], capped, 0.0) / softcap))
    ds, p = flat((ds * scale).astype(q.dtype)), flat(p.astype(v.dtype))
    dq = jnp.einsum("bkqs,bksh->bkqh", ds, k, preferred_element_type=jnp.float32).astype(q.dtype).reshape(q.shape)
    # The small operand first, and the small result transposed: the large one is then read as it lies.
    dk = jnp.einsum("bkqh,bkqs->bkhs", flat(q), ds, preferred_element_type=jnp.float32)
    dv = jnp.einsum("bkqh,bkqs->bkhs", flat(d_out), p, preferred_element_type=jnp.float32)
    return dq, jnp.swapaxes(dk, -1, -2), jnp.swapaxes(dv, -1, -2), d_terms


def _term_gradients(ds: Float[Array, "B K G T S"], mask: Mask, terms: Terms) -> Terms:
    bias, slope = terms
    by_slot = lambda of_keys: jnp.moveaxis(jnp.sum(of_keys, axis=(2, 3)), 1, -1)  # noqa: E731
    return None if bias is None else by_slot(ds), None if slope is None else by_slot(ds * mask.age()[:, :, None])
