"""The reference against the formula, a query and a head at a time in float64."""

import numpy as np
import pytest

from mnemax.kernels.attend import attend
from tests.kernels.attention_problems import PROBLEMS


@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)
def test_reference_is_the_formula(problem):
    inputs = {"mask": problem.mask, **problem.options, **problem.terms, "implementation": "reference"}
    out, lse = attend(problem.q, problem.k, problem.v, **inputs)
    expected_out, expected_lse = formula(problem)
    np.testing.assert_allclose(out, expected_out, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(lse, expected_lse, rtol=1e-5, atol=1e-5)
    blind = np.isneginf(expected_lse)
    assert np.isneginf(np.asarray(lse)[blind]).all()
    assert (np.asarray(out)[blind] == 0).all()


def formula(problem):
    q, k, v = (np.asarray(x, np.float64) for x in (problem.q, problem.k, problem.v))
    (B, T, N, _), group = q.shape, q.shape[2] // k.shape[2]
    slots = np.asarray(problem.mask.k_index)
    slots = np.broadcast_to(slots[..., None] if slots.ndim == 2 else slots, (B, *k.shape[1:3]))
    index, starts = np.asarray(problem.mask.q_index), np.asarray(problem.mask.q_start)
    out, lse = np.zeros((B, T, N, v.shape[-1])), np.full((B, T, N), -np.inf)
    for b, t, n in np.ndindex(B, T, N):
        kept = slots[b, :, n // group]
        shown = sees(kept, index[t], starts[b, t], problem.mask.window, problem.mask.sinks)
        terms = {name: np.asarray(term)[b, :, n // group] for name, term in problem.terms.items()}
        seen = np.flatnonzero(shown & (terms.get("evict_at", np.inf) > index[t]))
        if not len(seen):
            continue
        logits = problem.scale * k[b, seen, n // group] @ q[b, t, n]
        if problem.softcap is not None:
            logits = problem.softcap * np.tanh(logits / problem.softcap)
        logits = logits + terms.get("key_bias", np.zeros(len(kept)))[seen]
        logits = logits + terms.get("key_slope", np.zeros(len(kept)))[seen] * (index[t] - kept[seen])
        weights = np.exp(logits)
        out[b, t, n] = weights @ v[b, seen, n // group] / weights.sum()
        lse[b, t, n] = np.log(weights.sum())
    return out, lse


def sees(kept, query, start, window, sinks):
    """Which slots a query sees: those of its own document, not later than itself, and near enough or a sink."""
    seen = (kept >= 0) & (kept >= start) & (kept <= query)
    return seen if window is None else seen & ((query - kept < window) | (kept - start < sinks))
