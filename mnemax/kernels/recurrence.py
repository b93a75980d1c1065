"""Recurrences over a matrix state, in chunks: quadratic within a chunk, one step of the state from chunk to chunk.

    S_t = e^{g_t} S_{t-1} + k_t u_t^T        o_t = S_t^T q_t        S: [H, Hv], float32

with u_t = v_t (linear attention, Mamba-2's SSD: Dao and Gu 2024, arXiv 2405.21060, section 6) or the delta rule's
u_t = beta_t (v_t - e^{g_t} S_{t-1}^T k_t) (Yang et al. 2024, arXiv 2412.06464). Writing gives the u of every token and the state
before every chunk; reading needs no more than those, so that several layers may read what one wrote.

With G the cumulative g of a chunk, D_ij = e^{G_i - G_j} for j <= i, and S the state before the chunk:

    U = (I + tril(beta K K^T * D, -1))^{-1} beta (V - e^G K S)
    O = e^G Q S + (Q K^T * D) U
    S' = e^{G_C} S + (e^{G_C - G} K)^T U

A document begins with an empty state: D is 0 across documents, and only the document that goes on sees S.

Inside, arrays are [B, Q, R, n, C, ...]: Q key heads, R value heads a key head, n chunks of C tokens.
"""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Int

from mnemax.sharding import on_explicit_mesh


@partial(jax.tree_util.register_dataclass, data_fields=["index", "start", "k", "u", "decay", "states"], meta_fields=["chunk"])
@dataclass(frozen=True)
class Written:
    """What `write` gives to be read.

    Attributes:
        index, start: row index of each token, and that at which its document begins.
        k, u: keys, and what was added to the state under them (V a multiple of K).
        decay: g in float32.
        states: the state before each chunk [B, n, V, H, Hv] in float32.
        chunk: C; the last chunk may be shorter.
    """

    index: Int[Array, " T"]
    start: Int[Array, "B T"]
    k: Float[Array, "B T K H"]
    u: Float[Array, "B T V Hv"]
    decay: Float[Array, "B T V"]
    states: Float[Array, "B n V H Hv"]
    chunk: int


def write(
    k: Float[Array, "B T K H"],
    v: Float[Array, "B T V Hv"],
    decay: Float[Array, "B T V"],
    beta: Float[Array, "B T V"] | None,
    state: Float[Array, "B V H Hv"],
    index: Int[Array, " T"],
    start: Int[Array, "B T"],
    chunk: int,
) -> tuple[Float[Array, "B V H Hv"], Written]:
    """The state after these tokens, and what they read. `decay` is g <= 0; `beta` None: no delta rule."""
    chunk = min(chunk, k.shape[1])
    if v.shape[2] != k.shape[2] and _heads(v) != _heads(k):  # fewer key heads than shards: one a value head
        k = jax.sharding.reshard(jnp.repeat(k, v.shape[2] // k.shape[2], axis=2), P(_rows(v), None, _heads(v), None))
    rows, heads = _rows(v), _heads(v)
    by_head, of_gate, of_state = P(rows, None, heads, None), P(rows, None, heads), P(rows, heads, None, None)
    if on_explicit_mesh():
        state = jax.sharding.reshard(state, of_state)
    state, u, states = _by_shard(
        partial(_write, chunk),
        (k, v, decay, beta, state, index, start),
        (by_head, by_head, of_gate, None if beta is None else of_gate, of_state, P(), P(rows, None)),
        (of_state, by_head, P(rows, None, heads, None, None)),
    )
    return state, Written(index, start, k, u, decay, states, chunk)


def read(q: Float[Array, "B T N H"], written: Written) -> Float[Array, "B T O Hv"]:
    """o of every query, in q's dtype. N is a multiple of the K key heads; O is the larger of N and the V value heads."""
    u, rows, heads = written.u, _rows(written.u), _heads(written.u)
    if q.shape[2] < u.shape[2] and _heads(q) != heads:
        q = jax.sharding.reshard(jnp.repeat(q, u.shape[2] // q.shape[2], axis=2), P(rows, None, heads, None))
    by_head = P(rows, None, heads, None)
    layouts = [P(), P(rows, None), by_head, by_head, P(rows, None, heads), P(rows, None, heads, None, None)]
    specs = jax.tree.unflatten(jax.tree.structure(written), layouts)
    return _by_shard(_read, (q, written), (by_head, specs), by_head).astype(q.dtype)


def _write(chunk: int, k, v, decay, beta, state, index, start):
    K, V = k.shape[2], v.shape[2]
    k, v, g = _chunks(k, K, chunk), _chunks(v, K, chunk), _chunks(decay, K, chunk)
    D, carried = _decays(g, index, start, chunk)
    left = D[..., -1, :]  # of each token at the chunk's end
    if beta is None:
        u, w = v, None
    else:
        u, w = _solved(k, v, _chunks(beta, K, chunk), D, carried)

    def step(S, one):
        k, u, w, left, kept = one
        if w is not None:
            u = u - _exact(w, S)
        return kept[..., None, None] * S + _exact(jnp.swapaxes(k * left[..., None], -1, -2), u), (u, S)

    state = state.reshape(state.shape[0], K, V // K, *state.shape[2:])
    over = jax.tree.map(lambda x: jnp.moveaxis(x, 3, 0), (k.astype(jnp.float32), u, w, left, carried[..., -1]))
    state, (u_new, states) = jax.lax.scan(step, state, over)
    merged = lambda x: x.reshape(x.shape[0], V, *x.shape[3:])  # noqa: E731
    u = v if beta is None else jnp.moveaxis(u_new, 0, 3).astype(v.dtype)
    return merged(state), _tokens(u)[:, : start.shape[1]], jnp.swapaxes(merged(jnp.moveaxis(states, 0, 3)), 1, 2)


def _solved(k, v, beta, D, carried):
    """u without the state before the chunk, and w of u - w S: both from one unit lower triangular system."""
    C = k.shape[-2]
    kk = jnp.matmul(k, jnp.swapaxes(k, -1, -2), preferred_element_type=jnp.float32)
    A = jnp.where(jnp.tri(C, k=-1, dtype=bool), beta[..., None] * kk * D, 0.0)
    right = jnp.concatenate([v.astype(jnp.float32), carried[..., None] * k.astype(jnp.float32)], axis=-1) * beta[..., None]
    right = _exact(_inverse(A), right)
    return right[..., : v.shape[-1]], right[..., v.shape[-1] :]


@jax.custom_vjp
def _inverse(A: Float[Array, "*batch C C"]) -> Float[Array, "*batch C C"]:
    """(I + A)^{-1} of strictly lower triangular A: inverses of blocks twice as large, until there is one.

    With diagonal blocks P, R and Q below P, the inverse has P^{-1}, R^{-1} and -R^{-1} Q P^{-1} in their places. Products alone,
    which every backend does well, where XLA's triangular solve was measured five times as slow on CPU.
    """
    C = A.shape[-1]
    rest = (1 << (C - 1).bit_length()) - C
    A = jnp.pad(A, (*((0, 0),) * (A.ndim - 2), (0, rest), (0, rest)))
    X, size = jnp.ones((*A.shape[:-1], 1, 1), A.dtype), 1
    while size < A.shape[-1]:
        blocks = A.reshape(*A.shape[:-2], A.shape[-1] // (2 * size), 2 * size, -1, 2 * size)
        Q = jnp.moveaxis(jnp.diagonal(blocks[..., size:, :, :size], axis1=-4, axis2=-2), -1, -3)
        P, R = X[..., ::2, :, :], X[..., 1::2, :, :]
        below = -_exact(R, _exact(Q, P))
        X = jnp.concatenate([jnp.concatenate([P, jnp.zeros_like(P)], axis=-1), jnp.concatenate([below, R], axis=-1)], axis=-2)
        size *= 2
    return X[..., 0, :C, :C]


def _inverse_forward(A: jax.Array):
    X = _inverse(A)
    return X, X


def _inverse_backward(X: jax.Array, dX: jax.Array):
    Xt = jnp.swapaxes(X, -1, -2)
    return (-_exact(Xt, _exact(dX, Xt)),)


_inverse.defvjp(_inverse_forward, _inverse_backward)


def _read(q, written: Written):
    K, V, chunk = written.k.shape[2], written.u.shape[2], written.chunk
    q, k, u = _chunks(q, K, chunk), _chunks(written.k, K, chunk), _chunks(written.u, K, chunk)
    D, carried = _decays(_chunks(written.decay, K, chunk), written.index, written.start, chunk)
    states = jnp.swapaxes(written.states, 1, 2)
    states = states.reshape(states.shape[0], K, V // K, *states.shape[2:])
    p = jnp.matmul(q, jnp.swapaxes(k, -1, -2), preferred_element_type=jnp.float32) * D
    out = jnp.matmul(p.astype(u.dtype), u, preferred_element_type=jnp.float32)
    out += carried[..., None] * jnp.matmul(q, states.astype(q.dtype), preferred_element_type=jnp.float32)
    return _tokens(out)[:, : written.start.shape[1]]


def _decays(g: Float[Array, "B Q R n C"], index, start, chunk: int):
    """D [B, Q, R, n, C, C] between the tokens of a chunk, and e^G [B, Q, R, n, C] of what came before it."""
    rest = -len(index) % chunk
    index, start = jnp.pad(index, (0, rest), mode="edge"), jnp.pad(start, ((0, 0), (0, rest)), mode="edge")
    index, start = index.reshape(-1, chunk), start.reshape(start.shape[0], 1, 1, -1, chunk)
    same = (start[..., :, None] == start[..., None, :]) & jnp.tri(chunk, dtype=bool)
    # Summed over the document's own tokens, so that not even rounding depends on what stands before them.
    G = _exact(same.astype(jnp.float32), g.astype(jnp.float32)[..., None])[..., 0]
    D = jnp.exp(jnp.where(same, G[..., :, None] - G[..., None, :], -jnp.inf))
    return D, jnp.exp(jnp.where(start < index[:, :1], G, -jnp.inf))


def _chunks(x: Float[Array, "B T N ..."], K: int, chunk: int) -> Float[Array, "B K R n C ..."]:
    """By key head and chunk; zeros fill the last chunk, which add nothing to the state and let nothing of it go."""
    B, T, N, *rest = x.shape
    x = jnp.pad(x, ((0, 0), (0, -T % chunk), (0, 0), *((0, 0),) * len(rest)))
    return jnp.moveaxis(x.reshape(B, -1, chunk, K, N // K, *rest), (3, 4), (1, 2))


def _tokens(x: Float[Array, "B *heads n C H"]) -> Float[Array, "B T N H"]:
    B, *_, n, C, H = x.shape
    return jnp.swapaxes(x.reshape(B, -1, n * C, H), 1, 2)


def _exact(a: jax.Array, b: jax.Array) -> jax.Array:
    """A product that the state is made of: float32 on every backend, for its errors would add up."""
    return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)


def _rows(x: jax.Array):
    return jax.typeof(x).sharding.spec[0] if on_explicit_mesh() else None


def _heads(x: jax.Array):
    return jax.typeof(x).sharding.spec[2] if on_explicit_mesh() else None


def _by_shard(run, arguments, in_specs, out_specs):
    if not on_explicit_mesh():
        return run(*arguments)
    return jax.shard_map(run, in_specs=in_specs, out_specs=out_specs)(*arguments)
