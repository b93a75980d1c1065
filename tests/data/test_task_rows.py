"""Tasks as rows of a run: whole examples, other ones in every split, resumed exactly."""

import itertools
import json

import numpy as np
import pytest

from mnemax.data.config import DataConfig
from mnemax.data.packing import TaskRows
from mnemax.data.pipeline import train_iterator, validation_batches
from mnemax.data.sources.mqar import MqarTask
from mnemax.data.tokenizers import load_tokenizer
from mnemax.errors import UserError

MQAR = {"kind": "mqar", "vocab_size": 64, "length": 16, "pairs": 3, "random_fill": False}
GROUP = {"kind": "group_words", "group": "S3", "length": 9}


def config(*sources: dict, **fields) -> DataConfig:
    tokenizer = {"kind": "symbols", "vocab_size": 64}
    return DataConfig(**{"tokenizer": tokenizer, "sources": sources, "sequence_length": 40, "batch_size": 4, **fields})


def iterator(data: DataConfig, seed: int = 0, **processes: int):
    return train_iterator(data, load_tokenizer(data.tokenizer), seed, **processes)


def examples(batch: dict[str, np.ndarray]) -> list[tuple]:
    """The inputs, targets and weights of every segment."""
    found = []
    for row in range(len(batch["inputs"])):
        for segment in range(1, batch["segments"][row].max() + 1):
            at = batch["segments"][row] == segment
            assert (batch["positions"][row][at] == np.arange(at.sum())).all()
            found.append(tuple(tuple(batch[name][row][at].tolist()) for name in ("inputs", "targets", "weights")))
        padding = batch["segments"][row] == 0
        assert not batch["weights"][row][padding].any()
    return found


@pytest.mark.parametrize("packing", ["concat", "first_fit"])
def test_rows_hold_whole_examples_that_fit(packing):
    for batch in itertools.islice(iterator(config(MQAR, packing=packing)), 5):
        assert {name: x.shape for name, x in batch.items()} == dict.fromkeys(batch, (4, 40))
        found = examples(batch)
        assert len(found) == 4 * (40 // 16)
        for inputs, targets, weights in found:
            told = dict(zip(inputs[0:6:2], inputs[1:6:2], strict=True))
            asked = [i for i, weight in enumerate(weights) if weight]
            assert len(asked) == 3
            assert all(targets[i] == told[inputs[i]] for i in asked)


@pytest.mark.parametrize("source", [MQAR, GROUP])
def test_batches_made_as_a_whole_hold_the_same_rows(source):
    data = config(source)
    task, own_seed = data.sources[0], int(np.random.SeedSequence((0, 0)).generate_state(1)[0])
    rows = TaskRows(task, data.sequence_length, own_seed)
    for i, batch in enumerate(itertools.islice(iterator(data), 3)):
        for at, row in enumerate(range(4 * i, 4 * i + 4)):
            for name, values in rows(0, row).items():
                np.testing.assert_array_equal(batch[name][at], values)


def test_every_example_is_new_unless_their_number_is_given():
    fresh = [one for batch in itertools.islice(iterator(config(MQAR)), 20) for one in examples(batch)]
    assert len(set(fresh)) == len(fresh)
    few = [one for batch in itertools.islice(iterator(config({**MQAR, "examples": 10})), 20) for one in examples(batch)]
    assert len(set(few)) == 10


def test_seeds_sources_and_splits_draw_other_examples():
    def first(data, seed=0):
        return {one for batch in itertools.islice(iterator(data, seed), 10) for one in examples(batch)}

    held_out = validation_batches(config(MQAR), load_tokenizer(config(MQAR).tokenizer), 10)
    drawn = [first(config(MQAR)), first(config(MQAR), seed=1), {one for batch in held_out for one in examples(batch)}]
    tests = MqarTask(**{**MQAR, "split": "test"})
    drawn.append({tuple(tuple(part.tolist()) for part in one[:3]) for one in map(tests.number, range(50))})
    assert all(not a & b for a, b in itertools.combinations(drawn, 2))
    assert first(config(MQAR)) == first(config(MQAR))


def test_a_mixture_keeps_its_weights():
    batches = list(itertools.islice(iterator(config({**MQAR, "weight": 3}, GROUP)), 50))
    rows = np.concatenate([batch["inputs"] for batch in batches])
    groups = (rows.max(axis=1) < 6).mean()
    assert 0.2 <= groups <= 0.3


@pytest.mark.parametrize("sources", [({**MQAR, "examples": 30}, GROUP), (MQAR,)], ids=["a mixture", "one that is always new"])
def test_resumes_where_it_stopped(sources):
    data = config(*sources)
    batches = iterator(data)
    for _ in range(7):
        next(batches)
    state = json.loads(json.dumps(batches.get_state()))
    expected = [next(batches) for _ in range(5)]
    again = iterator(data)
    again.set_state(state)
    for batch in expected:
        for name, values in next(again).items():
            np.testing.assert_array_equal(values, batch[name])


def test_processes_share_the_rows():
    whole = next(iterator(config(MQAR)))["inputs"]
    parts = [next(iterator(config(MQAR), process_index=i, process_count=2))["inputs"] for i in range(2)]
    assert {tuple(row) for row in whole} == {tuple(row) for part in parts for row in part}


def test_validation_asks_every_task_alike():
    batches = validation_batches(config(MQAR, validation=[MQAR, GROUP]), load_tokenizer(config(MQAR).tokenizer), 8)
    rows = np.concatenate([batch["inputs"] for batch in batches])
    assert len(rows) == 32
    assert (rows.max(axis=1) < 6).sum() == 16


def test_a_tokenizer_that_cannot_spell_the_symbols():
    data = config(MQAR, tokenizer={"kind": "symbols", "vocab_size": 63})
    with pytest.raises(UserError, match=r"data.sources\[0\] \(mqar\) has 64 symbols, which data.tokenizer, of 63 ids"):
        iterator(data)


def test_an_example_longer_than_a_row():
    with pytest.raises(UserError, match=r"\(mqar\) has examples of 16 tokens, more than data.sequence_length \(12\)"):
        iterator(config(MQAR, sequence_length=12))


def test_symbols_are_written_as_numbers(tmp_path):
    tokenizer = load_tokenizer(config(MQAR).tokenizer)
    assert tokenizer.encode("3 14 0 63") == [3, 14, 0, 63]
    assert tokenizer.decode([3, 14, 0, 63]) == "3 14 0 63"
    assert (tokenizer.eos, tokenizer.bos, tokenizer.vocab_size) == (None, None, 64)
    assert not tokenizer.token_bytes.any()
    tokenizer.save(tmp_path)
    again = load_tokenizer(DataConfig(tokenizer={"kind": "hf", "path": str(tmp_path)}).tokenizer)
    assert again.fingerprint == tokenizer.fingerprint
    with pytest.raises(UserError, match="cannot spell 'five'"):
        tokenizer.encode("five")
