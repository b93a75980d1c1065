"""Prepared shards give the batches of the text they were made of."""

import json
import logging
from pathlib import Path

import numpy as np
import pytest

from mnemax.data import prepare as module
from mnemax.data.config import BytesTokenizer, DataConfig, EmbeddedTokenizer
from mnemax.data.pipeline import train_iterator
from mnemax.data.prepare import prepare, train_tokenizer
from mnemax.data.sources.jsonl import JsonlSource
from mnemax.data.tokenizers import load_tokenizer
from mnemax.errors import UserError


@pytest.fixture(autouse=True)
def small_records(monkeypatch):
    monkeypatch.setattr(module, "RECORD_TOKENS", 16)


def batches(source: dict, tokenizer, packing: str = "concat", n: int = 10) -> list[dict[str, np.ndarray]]:
    data = DataConfig(sources=[source], sequence_length=24, batch_size=3, packing=packing)
    iterator = train_iterator(data, tokenizer, 5)
    return [next(iterator) for _ in range(n)]


@pytest.mark.parametrize("config", [BytesTokenizer(), EmbeddedTokenizer()], ids=lambda config: config.kind)
@pytest.mark.parametrize("packing", ["concat", "first_fit"])
def test_equals_the_text(tmp_path: Path, jsonl, documents, config, packing):
    path, out = jsonl(documents), tmp_path / "out"
    index = prepare(path, out, config, shard_tokens=200)
    tokenizer = load_tokenizer(config)
    assert len(index["shards"]) > 1
    assert index["documents"] == len(documents)
    assert index["bytes"] == sum(len(text.encode()) for text in documents)
    assert index["tokens"] == sum(len(tokenizer.encode(text)) + 2 for text in documents)
    assert not out.with_name("out.partial").exists()
    prepared = batches({"kind": "prepared", "path": str(out)}, tokenizer, packing)
    for a, b in zip(batches({"kind": "jsonl", "path": path}, tokenizer, packing), prepared, strict=True):
        for name in a:
            np.testing.assert_array_equal(a[name], b[name])


def test_its_own_tokenizer_reads_it_and_another_is_refused(tmp_path: Path, jsonl, documents):
    out = tmp_path / "out"
    prepare(jsonl(documents), out, BytesTokenizer())
    own = DataConfig(tokenizer={"kind": "hf", "path": str(out)}).tokenizer
    batches({"kind": "prepared", "path": str(out)}, load_tokenizer(own), n=1)
    with pytest.raises(UserError, match=r"prepared with another tokenizer \(257 ids\) than data.tokenizer \(2048 ids\)"):
        batches({"kind": "prepared", "path": str(out)}, load_tokenizer(EmbeddedTokenizer()))


def test_a_killed_run_leaves_no_folder(tmp_path: Path, jsonl, documents, monkeypatch):
    out = tmp_path / "out"
    path = jsonl(documents)

    def killed(self, tokens):
        if self.names:
            raise KeyboardInterrupt
        original(self, tokens)

    original = module._Shards.write
    monkeypatch.setattr(module._Shards, "write", killed)
    with pytest.raises(KeyboardInterrupt):
        prepare(path, out, BytesTokenizer())
    assert not out.exists()
    with pytest.raises(UserError, match=r"is not a folder that `mnemax data prepare` completed"):
        batches({"kind": "prepared", "path": str(tmp_path / "out.partial")}, load_tokenizer(BytesTokenizer()))
    monkeypatch.undo()
    assert prepare(path, out, BytesTokenizer())["documents"] == len(documents)
    assert not out.with_name("out.partial").exists()
    with pytest.raises(UserError, match="exists and is not an empty folder"):
        prepare(path, out, BytesTokenizer())


@pytest.mark.parametrize("damage", ["missing", "cut", "index", "lengths"])
def test_a_damaged_folder(tmp_path: Path, jsonl, documents, damage):
    out = tmp_path / "out"
    prepare(jsonl(documents), out, BytesTokenizer(), shard_tokens=200)
    shard = out / "shard-00001.array_record"
    match damage:
        case "missing":
            shard.unlink()
        case "cut":
            shard.write_bytes(shard.read_bytes()[: shard.stat().st_size // 2])
        case "index":
            (out / "index.json").write_text("{")
        case "lengths":
            np.save(out / "lengths.npy", np.load(out / "lengths.npy")[:-1])
    with pytest.raises(UserError, match=r"is damaged|is not a folder that"):
        batches({"kind": "prepared", "path": str(out)}, load_tokenizer(BytesTokenizer()))


def test_skipped_items_are_counted(tmp_path: Path, caplog):
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "good"}) + "\n{\n")
    with pytest.raises(UserError, match=r"a.jsonl:2"):
        prepare(str(tmp_path / "a.jsonl"), tmp_path / "out", BytesTokenizer())
    with caplog.at_level(logging.WARNING):
        index = prepare(str(tmp_path / "a.jsonl"), tmp_path / "out", BytesTokenizer(), skip_bad=True)
    assert (index["documents"], index["skipped"]) == (1, 1)
    assert "Skipped 1 bad items" in caplog.text


def test_sources_by_path(tmp_path: Path, jsonl, documents):
    (tmp_path / "more.txt").write_text("a text")
    index = prepare([jsonl(documents), str(tmp_path / "more.txt")], tmp_path / "out", BytesTokenizer())
    assert [source["kind"] for source in index["sources"]] == ["jsonl", "text"]
    assert index["documents"] == len(documents) + 1
    with pytest.raises(UserError, match="nowhere does not exist"):
        prepare("nowhere", tmp_path / "other", BytesTokenizer())


def test_training_a_tokenizer(tmp_path: Path, jsonl):
    text = "to be or not to be " * 30
    train_tokenizer(JsonlSource(path=jsonl([text])), tmp_path / "bpe", 262)
    tokenizer = load_tokenizer(DataConfig(tokenizer={"kind": "hf", "path": str(tmp_path / "bpe")}).tokenizer)
    assert tokenizer.vocab_size == 262
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.bos == tokenizer.eos == 261
