"""Filters of sampling against brute force, and drawn frequencies against probabilities."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mnemax.models.generate import Sampling, filter_logits, sample


def softmax(logits):
    p = np.exp(logits - logits.max())
    return p / p.sum()


def allowed(logits, top_k, top_p, min_p):
    """Ids left by each filter in turn, one token at a time, probabilities renormalised between filters."""
    ids = sorted(range(len(logits)), key=lambda i: -logits[i])
    if top_k is not None:
        ids = ids[:top_k]
    if top_p < 1:
        p, kept, total = softmax(logits[ids]), [], 0.0
        for i, probability in zip(ids, p, strict=True):
            if kept and total >= top_p:
                break
            kept.append(i)
            total += probability
        ids = kept
    p = softmax(logits[ids])
    return {i for i, probability in zip(ids, p, strict=True) if probability >= min_p * p.max()}


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 1000),
    top_k=st.none() | st.integers(1, 12),
    top_p=st.sampled_from([0.0, 0.1, 0.5, 0.83, 1.0]),
    min_p=st.sampled_from([0.0, 0.02, 0.3, 1.0]),
)
def test_filters(seed, top_k, top_p, min_p):
    logits = 3 * np.random.default_rng(seed).standard_normal((2, 9)).astype(np.float32)
    found = filter_logits(jnp.asarray(logits), Sampling(top_k=top_k, top_p=top_p, min_p=min_p))
    for row, kept in zip(logits, np.isfinite(found), strict=True):
        assert set(np.flatnonzero(kept)) == allowed(row.astype(np.float64), top_k, top_p, min_p)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_frequencies(temperature):
    logits = jnp.asarray([[1.0, 0.0, -1.0, 2.0, -3.0]])
    count = 20_000
    drawn = sample(jnp.repeat(logits, count, axis=0), jax.random.key(0), Sampling(temperature=temperature, top_k=3))
    expected = softmax(np.where(np.asarray(logits[0]) < 0, -np.inf, np.asarray(logits[0])) / temperature)
    np.testing.assert_allclose(np.bincount(drawn, minlength=5) / count, expected, atol=4 * 0.5 / count**0.5)


def test_zero_temperature_is_greedy():
    logits = jax.random.normal(jax.random.key(0), (6, 11))
    assert np.array_equal(sample(logits, jax.random.key(1), Sampling(temperature=0.0)), np.argmax(logits, axis=-1))
