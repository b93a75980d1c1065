"""Maps of a needle: each cell holds what was asked at its depth and length, in tokens and in text."""

import numpy as np
import pytest

from mnemax.data.config import DataConfig, EmbeddedTokenizer
from mnemax.data.sources.needle import NeedleTask
from mnemax.data.tokenizers import load_tokenizer
from mnemax.errors import UserError
from mnemax.evaluation.evaluate import read_measure
from mnemax.evaluation.measures import needle_map
from mnemax.evaluation.measures.needle_map import NeedleMapConfig
from mnemax.evaluation.measures.recall import RecallConfig
from mnemax.evaluation.scoring import Score
from tests.evaluation.subjects import subject

SIZES = dict(filler_symbols=8, key_symbols=8, value_symbols=8)


def ignore(done: int, total: int) -> None:
    pass


def test_tokens_end_to_end():
    done = []
    data = DataConfig(sources=(NeedleTask(length=64, **SIZES),), sequence_length=64)
    measure = NeedleMapConfig(depths=(0.0, 1.0), samples=5)
    result = measure(subject(None, data), lambda n, total: done.append((n, total)))
    grid = result["grid"]
    assert grid["lengths"] == [16, 32, 64] and grid["depths"] == [0.0, 1.0]
    assert np.shape(grid["accuracy"]) == (3, 2)
    assert result["accuracy"] == np.mean(grid["accuracy"]) < 0.5  # it has learnt nothing
    assert done == [(n, 30) for n in range(1, 31)]


def test_a_cell_is_right_where_all_of_the_value_is(monkeypatch):
    """A stand-in for the model that reads no further than 24 tokens back, and errs at the second token of every third value."""
    number = 0

    def scores(model, rows, length, batch):
        nonlocal number
        for inputs, _ in rows:
            assert len(inputs) == length
            mark = inputs.max() - 1  # NEEDLE; the largest is QUERY
            right = np.zeros(length, bool)
            (needle,) = np.flatnonzero(inputs == mark)
            right[-4:-1] = needle >= length - 24
            if number % 3 == 0:
                right[-3] = False
            number += 1
            yield Score(np.zeros(length), right)

    monkeypatch.setattr(needle_map, "scores", scores)
    measure = NeedleMapConfig(needle=NeedleTask(length=64, **SIZES), lengths=(16, 64), depths=(0.0, 0.5, 1.0), samples=9)
    result = measure(subject(None), ignore)
    assert np.allclose(result["grid"]["accuracy"], [[2 / 3] * 3, [0, 0, 2 / 3]])


def test_text_end_to_end():
    tokenizer = load_tokenizer(EmbeddedTokenizer(vocab_size=4096))
    measure = NeedleMapConfig(lengths=(192, 256), depths=(0.0, 1.0), samples=2)
    result = measure(subject(tokenizer), ignore)
    assert np.shape(result["grid"]["accuracy"]) == (2, 2) and result["samples"] == 8


def test_depths_in_text(monkeypatch):
    """A stand-in for the model that answers what stands in the first half of the context."""
    tokenizer = load_tokenizer(EmbeddedTokenizer(vocab_size=4096))

    class Half:
        def __init__(self, subject):
            pass

        def __call__(self, asked, fitted, allowed):
            heads = [one.sample.context[: len(one.sample.context) // 2] for one in fitted]
            return [asked.score(head, one.sample.answers) for head, one in zip(heads, fitted, strict=True)]

    monkeypatch.setattr(needle_map, "Answering", Half)
    measure = NeedleMapConfig(text="niah_single_1", lengths=(512, 1024), depths=(0.0, 0.25, 0.75, 1.0), samples=3)
    result = measure(subject(tokenizer, max_length=1024), ignore)
    assert result["grid"]["accuracy"] == [[1, 1, 0, 0]] * 2


def test_bad_input():
    tokenizer = load_tokenizer(EmbeddedTokenizer(vocab_size=4096))
    needle = NeedleTask(length=64, **SIZES)
    for measure, given, sentence in (
        (NeedleMapConfig(lengths=(512,)), subject(tokenizer), r"lengths of 512, more than model.max_length \(256\)"),
        (NeedleMapConfig(), subject(None), "needs a tokenizer"),
        (NeedleMapConfig(needle=needle, lengths=(512,)), subject(None), r"more than model.max_length \(256\)"),
        (NeedleMapConfig(needle=needle, lengths=(8,)), subject(None), r"length \(8\) is too short for the needles"),
        (NeedleMapConfig(needle=NeedleTask(key_symbols=500), lengths=(64,)), subject(None), "more than model.vocab_size"),
        (NeedleMapConfig(needle=NeedleTask(keys=4, queries=2), lengths=(64,)), subject(None), "depth .* is that of one needle"),
    ):
        with pytest.raises(UserError, match=sentence):
            measure(given, ignore)


TINY = ["needle", "multikey", "multivalue", "multiquery", "variable_tracking", "common_words", "frequent_words"]


@pytest.mark.parametrize("name", TINY)
def test_tiny_presets_fit_the_model_of_the_experiment(name):
    measure = read_measure(f"{name}_tiny")
    assert isinstance(measure, RecallConfig) and [task.length for task in measure.tasks] == [128, 256]
    assert all(task.symbols <= 256 for task in measure.tasks)
