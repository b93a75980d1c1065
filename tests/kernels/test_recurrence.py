"""Recurrences in chunks against the recurrence itself, token by token in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mnemax.kernels import recurrence

B, T, K, H, HV = 2, 37, 2, 5, 3
STARTS = {"one document": (0,), "packed": (0, 1, 9, 20, 36)}


def token_by_token(q, k, v, decay, beta, state, start):
    """o [B, T, O, Hv] and the last state, of arrays [B, T, heads, ...]; few heads are repeated to as many as they meet."""
    state, outputs = state.copy(), []
    V = v.shape[2]
    k = np.repeat(k, V // k.shape[2], axis=2)
    readers = max(V, q.shape[2])
    q = np.repeat(q, readers // q.shape[2], axis=2)
    for t in range(q.shape[1]):
        state[start[:, t] == t] = 0.0
        state *= np.exp(decay[:, t])[..., None, None]
        u = v[:, t]
        if beta is not None:
            u = beta[:, t][..., None] * (u - np.einsum("bvhe,bvh->bve", state, k[:, t]))
        state += np.einsum("bvh,bve->bvhe", k[:, t], u)
        outputs.append(np.einsum("bohe,boh->boe", np.repeat(state, readers // V, axis=1), q[:, t]))
    return np.stack(outputs, axis=1), state


def problem(V: int, N: int, delta: bool):
    rng = np.random.default_rng(0)
    k = rng.standard_normal((B, T, K, H))
    k /= np.linalg.norm(k, axis=-1, keepdims=True)
    q, v = rng.standard_normal((B, T, N, H)), rng.standard_normal((B, T, V, HV))
    decay = -rng.exponential(0.5, (B, T, V)) * rng.choice([0.01, 1, 4], (B, T, V))
    beta = rng.uniform(0, 2, (B, T, V)) if delta else None
    return q, k, v, decay, beta, rng.standard_normal((B, V, H, HV))


@pytest.mark.parametrize("starts", STARTS.values(), ids=STARTS)
@pytest.mark.parametrize("chunk", [1, 8, 37, 64])
@pytest.mark.parametrize(("V", "N"), [(2, 2), (4, 2), (2, 6), (4, 4)])
@pytest.mark.parametrize("delta", [False, True])
def test_values(delta, V, N, chunk, starts):
    q, k, v, decay, beta, state = problem(V, N, delta)
    start = np.tile(np.maximum.accumulate([i if i in starts else -7 for i in range(T)]), (B, 1))
    start[0] = -7  # goes on from what was before
    expected, last = token_by_token(q, k, v, decay, beta, state, start)
    new, written = recurrence.write(*f32(k, v, decay, beta, state), jnp.arange(T), jnp.asarray(start), chunk)
    np.testing.assert_allclose(recurrence.read(*f32(q), written), expected, atol=2e-5)
    np.testing.assert_allclose(new, last, atol=2e-5)


@pytest.mark.parametrize("delta", [False, True])
def test_gradients_do_not_depend_on_the_chunk(delta):
    q, k, v, decay, beta, state = f32(*problem(4, 2, delta))
    start = np.tile(np.maximum.accumulate([i if i in (9, 20) else -7 for i in range(T)]), (B, 1))

    def loss(inputs, chunk):
        q, k, v, decay, beta, state = inputs
        new, written = recurrence.write(k, v, decay, beta, state, jnp.arange(T), jnp.asarray(start), chunk)
        return jnp.sum(recurrence.read(q, written) ** 2) + jnp.sum(new**3)

    inputs = (q, k, v, decay, beta, state)
    step, chunked = (jax.grad(loss)(inputs, chunk) for chunk in (1, 16))
    for a, b in zip(jax.tree.leaves(step), jax.tree.leaves(chunked), strict=True):
        assert np.isfinite(b).all()
        np.testing.assert_allclose(a, b, atol=1e-4 * np.abs(a).max())


def f32(*arrays):
    return [None if a is None else jnp.asarray(a, jnp.float32) for a in arrays]


@pytest.mark.slow
@pytest.mark.parametrize("chunk", [1, 64])
@pytest.mark.parametrize("delta", [False, True])
def test_the_state_does_not_drift(delta, chunk):
    """After 16,384 tokens in bfloat16 the state is still that of float64 fed the same tokens; what is read is rounded once."""
    T, rng = 16384, np.random.default_rng(0)
    unit = lambda x: x / np.linalg.norm(x, axis=-1, keepdims=True)  # noqa: E731
    rounded = lambda x: np.asarray(jnp.asarray(x, jnp.bfloat16).astype(jnp.float32), np.float64)  # noqa: E731
    q, k = rounded(unit(rng.standard_normal((2, 1, T, 1, 32))))
    v, decay = rounded(rng.standard_normal((1, T, 1, 32))), -rng.exponential(0.01, (1, T, 1))
    beta = rng.uniform(0, 1, (1, T, 1)) if delta else None
    state, start = np.zeros((1, 1, 32, 32)), np.zeros((1, T), np.int32)
    expected, last = token_by_token(q, k, v, decay, beta, state, start - 1)
    low = [jnp.asarray(x, jnp.bfloat16) for x in (q, k, v)]
    new, written = recurrence.write(*low[1:], *f32(decay, beta, state), jnp.arange(T), jnp.asarray(start - 1), chunk)
    np.testing.assert_allclose(new, last, atol=2e-6 * np.abs(last).max())
    error = np.abs(np.asarray(recurrence.read(low[0], written).astype(jnp.float32)) - expected)
    size = np.abs(expected)
    assert error[:, -1024:].mean() / size[:, -1024:].mean() < 1.1 * error[:, :1024].mean() / size[:, :1024].mean()
    assert error.mean() < 5e-3 * size.mean()
