"""Parallel logits equal step-by-step logits, and prefill in any chunking equals both."""

from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest

CAPACITY = 27  # more than is ever written
HUGE = 1e30
CHUNKINGS = {"steps": (1,) * 24, "long, short": (17, 7), "short, long": (7, 17), "chunk, steps, chunk": (7, *(1,) * 10, 7)}


@pytest.mark.parametrize("chunks", CHUNKINGS.values(), ids=CHUNKINGS)
def test_chunks_equal_parallel(architecture, places, chunks):
    tokens = architecture.tokens()
    state = poisoned(architecture)
    found = []
    for start, end in pairwise(np.cumsum([0, *chunks])):
        logits, state = architecture.decode(tokens[:, start:end], places[:, start:end], state)
        found.append(logits)
    assert int(state.length) == tokens.shape[1]
    np.testing.assert_allclose(np.concatenate(found, axis=1), architecture.logits(tokens, places), rtol=1e-4, atol=3e-5)


def test_reference_equals_auto(architecture, places):
    tokens = architecture.tokens()
    reference = architecture.logits(tokens, places, implementation="reference")
    np.testing.assert_allclose(architecture.logits(tokens, places), reference, rtol=1e-4, atol=3e-5)


def poisoned(architecture):
    """An empty state whose slots hold huge values, so that reading one that nothing was written to shows.

    A leaf holds slots if its shape follows the capacity; what is not 0 when empty has a meaning, and is left.
    """
    small, state = architecture.init_state(2, 1), architecture.init_state(2, CAPACITY)

    def poison(few, many):
        slots = few.shape != many.shape and jnp.issubdtype(many.dtype, jnp.floating) and not many.any()
        return jnp.full_like(many, HUGE) if slots else many

    return jax.tree.map(poison, small, state)
