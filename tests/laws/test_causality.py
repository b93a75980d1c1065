"""Nothing after a token changes its logits, and neither does another document, another row or padding."""

import numpy as np
import pytest

from mnemax.models.generate import pad_prompts


@pytest.mark.parametrize("last", [0, 7, 8, 22])
def test_later_tokens_change_nothing(architecture, places, last):
    before = architecture.tokens()
    after = np.where(np.arange(before.shape[1]) > last, architecture.tokens(seed=1), before)
    assert (before != after).any()
    seen = slice(0, last + 1)
    assert np.array_equal(architecture.logits(before, places)[:, seen], architecture.logits(after, places)[:, seen])


def test_a_packed_document_is_as_if_alone(architecture):
    """Alone: moved to the beginning of its row, what else is in the row coming after it."""
    tokens, length, start = architecture.tokens(), 24, 9
    packed = np.tile(np.r_[np.arange(start), np.arange(length - start)], (2, 1)).astype(np.int32)
    alone = np.tile(np.r_[np.arange(length - start), np.arange(start)], (2, 1)).astype(np.int32)
    moved = np.roll(tokens, -start, axis=1)
    together = architecture.logits(tokens, packed)
    np.testing.assert_allclose(together[:, start:], architecture.logits(moved, alone)[:, :-start], rtol=1e-4, atol=3e-5)


def test_other_rows_change_nothing(architecture, places):
    tokens, other = architecture.tokens(), architecture.tokens(seed=1)
    other[0] = tokens[0]
    assert np.array_equal(architecture.logits(tokens, places)[0], architecture.logits(other, places)[0])


def test_padding_changes_nothing(architecture):
    """Padding as decoding makes it: the same prompts, whatever the padding holds."""
    prompts = [architecture.tokens()[0, :n].tolist() for n in (17, 11)]
    tokens, places = (rows[:, -24:] for rows in pad_prompts(prompts))
    other = architecture.tokens(seed=1)
    for row, prompt in enumerate(prompts):
        other[row, -len(prompt) :] = prompt
        found, expected = (architecture.logits(rows, places)[row, -len(prompt) :] for rows in (other, tokens))
        assert np.array_equal(found, expected)
