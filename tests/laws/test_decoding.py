"""Parallel logits equal step-by-step logits, and prefill in any chunking equals both."""

from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mnemax.evaluation.accounting import live_bytes, state_bytes
from tests.laws.conftest import positions

SPARE = 3  # slots beyond what is ever written
HUGE = 1e30
CHUNKINGS = {"steps": (1,) * 24, "long, short": (17, 7), "short, long": (7, 17), "chunk, steps, chunk": (7, *(1,) * 10, 7)}
LONG = 150
# Of few lengths, since each is compiled.
LONG_CHUNKINGS = {"1": (1,) * LONG, "7": (*(7,) * 21, 1, 1, 1), "64": (64, 64, 7, 7, 7, 1), "whole": (LONG,)}


@pytest.fixture(scope="session")
def rounding(architecture):
    """How far rounding alone moves the logits of the rows here: processors sum in other orders, and some models amplify it."""
    rounding = moved_by_last_bits(architecture, architecture.tokens(), positions((9, 15), (1, 13, 10)))
    assert rounding < 3e-3
    return rounding


@pytest.mark.parametrize("chunks", CHUNKINGS.values(), ids=CHUNKINGS)
def test_chunks_equal_parallel(architecture, rounding, places, chunks):
    check_chunks(architecture, architecture.tokens(), places, chunks, atol=max(3e-5, 2 * rounding))


@pytest.mark.slow
@pytest.mark.parametrize("chunks", LONG_CHUNKINGS.values(), ids=LONG_CHUNKINGS)
def test_chunks_of_long_rows_equal_parallel(architecture, chunks):
    # No token comes twice in a row: equal tokens rank alike but for rounding, and another order of summation keeps another.
    rng, places = np.random.default_rng(0), positions((LONG,), (70, 1, 79))
    tokens = np.stack([rng.permutation(architecture.config.vocab_size)[:LONG] for _ in places]).astype(np.int32)
    rounding = moved_by_last_bits(architecture, tokens, places)
    assert rounding < 3e-3
    check_chunks(architecture, tokens, places, chunks, atol=max(3e-5, 2 * rounding))


def moved_by_last_bits(architecture, tokens, places):
    """The most that a logit moves when the last bit of every weight does: orders of summation agree no better than so.

    Of four draws, since one alone may be a third of another.
    """
    params, logits = architecture.params, architecture.logits.func  # of any parameters
    rng, plain = np.random.default_rng(1), architecture.logits(tokens, places)

    def moved(value):
        return np.nextafter(value, rng.choice([-np.inf, np.inf], value.shape).astype(np.float32))

    draws = [logits({name: moved(value) for name, value in params.items()}, tokens, places) for _ in range(4)]
    return max(float(np.abs(draw - plain).max()) for draw in draws)


def check_chunks(architecture, tokens, places, chunks, atol):
    state = poisoned(architecture, sum(chunks) + SPARE)
    found = []
    for start, end in pairwise(np.cumsum([0, *chunks])):
        logits, state = architecture.decode(tokens[:, start:end], places[:, start:end], state)
        found.append(logits)
    assert int(state.length) == tokens.shape[1]
    assert live_bytes(state) == state_bytes(architecture.config, len(tokens), sum(chunks) + SPARE)
    np.testing.assert_allclose(np.concatenate(found, axis=1), architecture.logits(tokens, places), rtol=1e-4, atol=atol)


def test_reference_equals_auto(architecture, rounding, places):
    tokens = architecture.tokens()
    reference = architecture.logits(tokens, places, implementation="reference")
    np.testing.assert_allclose(architecture.logits(tokens, places), reference, rtol=1e-4, atol=max(3e-5, 2 * rounding))


def poisoned(architecture, capacity):
    """An empty state whose slots hold huge values, so that reading one that nothing was written to shows.

    A leaf holds slots if its shape follows the capacity; what is not 0 when empty has a meaning, and is left.
    """
    small, state = architecture.init_state(2, 1), architecture.init_state(2, capacity)

    def poison(few, many):
        slots = few.shape != many.shape and jnp.issubdtype(many.dtype, jnp.floating) and not many.any()
        return jnp.full_like(many, HUGE) if slots else many

    return jax.tree.map(poison, small, state)
