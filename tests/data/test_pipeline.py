"""Batches against documents rebuilt from them."""

import itertools
import json
import pickle
import subprocess
import sys
from collections import Counter

import grain
import numpy as np
import pytest

from mnemax.data.config import DataConfig
from mnemax.data.documents import MemoryDocuments, whole
from mnemax.data.packing import BINS, Rows
from mnemax.data.pipeline import train_iterator, validation_batches
from mnemax.data.tokenizers import load_tokenizer

T, B = 32, 4
PACKINGS = ("concat", "first_fit")


def config(*paths: str, **fields) -> DataConfig:
    sources = [{"kind": "jsonl", "path": path} for path in paths]
    return DataConfig(**{"sources": sources, "sequence_length": T, "batch_size": B, "validation_fraction": 0.0, **fields})


def iterator(data: DataConfig, seed: int = 0, **processes: int):
    return train_iterator(data, load_tokenizer(data.tokenizer), seed, **processes)


def segments(batch: dict[str, np.ndarray]) -> list[tuple[np.ndarray, np.ndarray]]:
    """(inputs, targets) of every segment, found by walking along the rows."""
    found = []
    for row in range(len(batch["inputs"])):
        ids = batch["segments"][row]
        for segment in range(1, ids.max() + 1):
            (at,) = np.nonzero(ids == segment)
            found.append((batch["inputs"][row][at], batch["targets"][row][at]))
    return found


def tokens_of(texts: list[str]) -> list[list[int]]:
    return [[256, *text.encode(), 256] for text in texts]


def pairs(texts: list[str]) -> Counter:
    """Every (token, next token) of the documents."""
    return Counter(pair for ids in tokens_of(texts) for pair in itertools.pairwise(ids))


@pytest.mark.parametrize("packing", PACKINGS)
def test_layout_of_a_row(jsonl, documents, packing):
    data = config(jsonl(documents), packing=packing)
    whole = [bytes(b % 256 for b in ids) for ids in tokens_of(documents)]
    batches = iterator(data)
    for _ in range(20):
        batch = next(batches)
        assert {name: (x.shape, x.dtype.name) for name, x in batch.items()} == {
            name: ((B, T), "float32" if name == "weights" else "int32")
            for name in ("inputs", "targets", "positions", "segments", "weights")
        }
        real = batch["segments"] > 0
        np.testing.assert_array_equal(batch["weights"], real)
        assert all((batch[name][~real] == 0).all() for name in batch)
        for row in range(B):
            ids = batch["segments"][row]
            ids = ids[ids > 0]
            assert ids[0] == 1
            assert set(np.diff(ids)) <= {0, 1}
            assert real[row][: len(ids)].all()
            starts = np.arange(len(ids)) - batch["positions"][row][: len(ids)]
            expected = [int(np.argmax(ids == segment)) for segment in ids]
            assert starts.tolist() == expected
        for inputs, targets in segments(batch):
            piece = bytes(x % 256 for x in [*inputs, targets[-1]])
            assert (inputs[1:] == targets[:-1]).all()
            assert any(piece in text for text in whole)


def test_concat_has_no_padding(jsonl, documents):
    batches = iterator(config(jsonl(documents)))
    assert all((next(batches)["segments"] > 0).all() for _ in range(20))


def test_first_fit_cuts_only_documents_longer_than_a_row(jsonl, documents):
    short = {tuple(ids) for ids in tokens_of(documents) if len(ids) <= T + 1}
    batches = iterator(config(jsonl(documents), packing="first_fit"))
    seen = set()
    for _ in range(40):
        for inputs, targets in segments(next(batches)):
            piece = (*inputs.tolist(), int(targets[-1]))
            assert len(inputs) == T or piece in short or piece[0] != 256 or piece[-1] != 256
            seen.add(piece)
    assert short <= seen


@pytest.mark.parametrize("packing", PACKINGS)
def test_validation_holds_every_token_once(jsonl, documents, packing):
    path = jsonl(documents)
    data = config(path, packing=packing, validation=[{"kind": "jsonl", "path": path}])
    tokenizer = load_tokenizer(data.tokenizer)
    batches = validation_batches(data, tokenizer, 1000)
    found = Counter(pair for b in batches for inputs, targets in segments(b) for pair in zip(inputs, targets, strict=True))
    assert found == pairs(documents)
    assert all(batch["inputs"].shape == (B, T) for batch in batches)
    again = validation_batches(data, tokenizer, 2)
    assert len(again) == 2
    for a, b in zip(again, batches, strict=False):
        for name in a:
            np.testing.assert_array_equal(a[name], b[name])


def test_epoch_holds_every_document_and_a_new_order(jsonl):
    """20 documents of 10 tokens to predict, in rows of 20: an epoch is 10 rows, and its start is anywhere in the stream."""
    texts = [f"document{i:01x}" if i < 16 else f"documen{i:02x}" for i in range(20)]
    data = config(jsonl(texts), sequence_length=20, batch_size=10)
    batches, epochs = iterator(data), []
    for _ in range(3):
        batch = next(batches)
        assert Counter(zip(batch["inputs"].flat, batch["targets"].flat, strict=True)) == pairs(texts)
        epochs.append(batch["inputs"])
    assert not np.array_equal(epochs[0], epochs[1])
    assert not np.array_equal(epochs[1], epochs[2])


def test_rows_of_two_epochs_by_turns(monkeypatch):
    """Threads read ahead over an epoch's end: each order is made once, and a row is a function of its number."""
    made = []
    monkeypatch.setattr(Rows, "_stream", lambda self, epoch, stream=Rows._stream: made.append(epoch) or stream(self, epoch))
    documents = MemoryDocuments(np.arange(180), np.full(20, 9))
    rows, alone = (Rows(documents, whole(documents), 16, seed=0) for _ in range(2))
    by_turns = [rows(epoch * rows.count + row, row)["inputs"] for row in range(4) for epoch in (0, 1)]
    assert made == [0, 1]
    by_epoch = [alone(epoch * rows.count + row, row)["inputs"] for epoch in (0, 1) for row in range(4)]
    np.testing.assert_array_equal(by_turns, [by_epoch[4 * epoch + row] for row in range(4) for epoch in (0, 1)])


def test_windows_of_a_long_document_are_spread(tmp_path):
    (tmp_path / "book.txt").write_text("".join(f"{i:07d}\n" for i in range(4000)))
    data = DataConfig(sources=[{"kind": "text", "path": str(tmp_path / "book.txt")}], sequence_length=T, batch_size=16)
    inputs = next(iterator(data))["inputs"]
    lines = sorted(int(bytes(row[row < 256].tolist()).split(b"\n")[1]) for row in inputs)
    assert lines[-1] - lines[0] > 2000
    assert sum(np.diff(lines) <= 4) <= 2


@pytest.mark.parametrize("packing", PACKINGS)
def test_seed_decides_everything(jsonl, documents, packing):
    data = config(jsonl(documents), packing=packing)
    first, second, other = iterator(data, 3), iterator(data, 3), iterator(data, 4)
    same = [np.array_equal(a["inputs"], c["inputs"]) for a, _, c in _equal_pairs(first, second, other)]
    assert not all(same)


def _equal_pairs(first, second, other):
    for _ in range(10):
        a, b, c = next(first), next(second), next(other)
        for name in a:
            np.testing.assert_array_equal(a[name], b[name])
        yield a, b, c


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("sources", [1, 2])
def test_resumes_exactly(jsonl, documents, packing, sources):
    paths = [jsonl(documents, f"{i}.jsonl") for i in range(sources)]
    batches = iterator(config(*paths, packing=packing))
    grain.experimental.assert_equal_output_after_checkpoint(_Take(batches, 12))


class _Take(grain.DatasetIterator):
    """The first n elements of an endless iterator."""

    def __init__(self, inner, n):
        super().__init__(inner)
        self.inner, self.n, self.taken = inner, n, 0

    def __next__(self):
        if self.taken == self.n:
            raise StopIteration
        self.taken += 1
        return next(self.inner)

    def get_state(self):
        return {"inner": self.inner.get_state(), "taken": self.taken}

    def set_state(self, state):
        self.inner.set_state(state["inner"])
        self.taken = state["taken"]


def test_state_is_json_that_another_process_resumes(jsonl, documents):
    paths = jsonl(documents, "a.jsonl"), jsonl(documents[::-1], "b.jsonl")
    runs, expected = [], []
    for packing in PACKINGS:
        data = config(*paths, packing=packing)
        batches = iterator(data, 7)
        for _ in range(9):
            next(batches)
        runs.append((data.model_dump_json(), json.dumps(batches.get_state())))
        expected.append([next(batches) for _ in range(5)])
    script = f"""
import json, pickle, sys
from mnemax.data.config import DataConfig
from mnemax.data.pipeline import train_iterator
from mnemax.data.tokenizers import load_tokenizer
out = []
for config, state in {runs!r}:
    data = DataConfig.model_validate_json(config)
    batches = train_iterator(data, load_tokenizer(data.tokenizer), 7)
    batches.set_state(json.loads(state))
    out.append([next(batches) for _ in range(5)])
sys.stdout.buffer.write(pickle.dumps(out))
"""
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True).stdout
    for run, resumed in zip(expected, pickle.loads(out), strict=True):
        for a, b in zip(run, resumed, strict=True):
            for name in a:
                np.testing.assert_array_equal(a[name], b[name])


def test_processes_share_the_rows_of_one(jsonl, documents):
    data = config(jsonl(documents, "a.jsonl"), jsonl(documents, "b.jsonl"))
    one = iterator(data)
    shares = [iterator(data, process_index=i, process_count=2) for i in range(2)]
    for _ in range(10):
        rows = sorted(row.tobytes() for row in next(one)["inputs"])
        parts = [next(share)["inputs"] for share in shares]
        assert [len(part) for part in parts] == [B // 2] * 2
        assert sorted(row.tobytes() for part in parts for row in part) == rows


def test_processes_share_first_fit_pieces(jsonl):
    """A document fills a row, and an epoch the open rows of both processes."""
    count = 2 * BINS
    texts = [f"document {i:04d}" for i in range(count)]
    data = config(jsonl(texts), packing="first_fit", sequence_length=14, batch_size=8)
    shares = [iterator(data, process_index=i, process_count=2) for i in range(2)]
    seen = Counter(tuple(inputs) for share in shares for _ in range(count // 8) for inputs, _ in segments(next(share)))
    assert len(seen) == count
    assert set(seen.values()) == {1}


def test_processes_share_validation(jsonl, documents):
    path = jsonl(documents)
    data = config(path, validation=[{"kind": "jsonl", "path": path}])
    tokenizer = load_tokenizer(data.tokenizer)
    whole = validation_batches(data, tokenizer, 100)
    halves = [validation_batches(data, tokenizer, 100, i, 2) for i in range(2)]
    for batch, first, second in zip(whole, *halves, strict=True):
        np.testing.assert_array_equal(batch["inputs"], np.concatenate([first["inputs"], second["inputs"]]))


@pytest.mark.parametrize("packing", PACKINGS)
def test_mixture_weights(jsonl, packing):
    paths = [jsonl([letter * 50] * 30, f"{letter}.jsonl") for letter in "ab"]
    sources = [{"kind": "jsonl", "path": path, "weight": weight} for path, weight in zip(paths, (3, 1), strict=True)]
    batches = iterator(config(sources=sources, packing=packing))
    rows = np.concatenate([next(batches)["inputs"] for _ in range(50)])
    a = (rows == ord("a")).any(1)
    assert a.mean() == pytest.approx(0.75, abs=0.02)
    assert not (a & (rows == ord("b")).any(1)).any()


@pytest.mark.parametrize("count", [2, 40])
def test_held_out_text_is_never_trained_on(jsonl, count):
    """Few documents lose their ends, many lose every tenth."""
    texts = [f"{i:02d}" + "".join(chr(0x1000 + 100 * i + j) for j in range(100)) for i in range(count)]
    data = config(jsonl(texts), validation_fraction=0.1)
    tokenizer = load_tokenizer(data.tokenizer)
    batches = iterator(data)
    trained = "".join(tokenizer.decode(row) for _ in range(60 * count // B) for row in next(batches)["inputs"])
    held = validation_batches(data, tokenizer, 1000)
    evaluated = "".join(tokenizer.decode(row[w > 0]) for b in held for row, w in zip(b["inputs"], b["weights"], strict=True))
    private = {c for c in evaluated if ord(c) >= 0x1000 and c != "\ufffd"}
    assert len(private) == pytest.approx(10 * count, rel=0.3)
    assert not private & set(trained)


def test_embedded_holds_out_whole_works():
    data = DataConfig(sequence_length=256)
    tokenizer = load_tokenizer(data.tokenizer)
    held = validation_batches(data, tokenizer, 10_000)
    assert sum(batch["weights"].sum() for batch in held) == 348_459 + 3
    text = "".join(tokenizer.decode(row) for batch in held for row in batch["inputs"])
    assert "MACBETH." in text
    assert "MALVOLIO." in text
    train = next(train_iterator(data, tokenizer, 0))
    assert "MALVOLIO" not in "".join(tokenizer.decode(row) for row in train["inputs"])
