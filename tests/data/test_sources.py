"""Every kind of source: the same documents, and one sentence for each kind of bad input."""

import gzip
import json
import logging
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow
import pytest
import zstandard
from pyarrow import parquet

from mnemax.data.config import BytesTokenizer, DataConfig
from mnemax.data.documents import MemoryDocuments
from mnemax.data.pipeline import train_iterator, validation_batches
from mnemax.data.sources import BadItems, SourceConfig
from mnemax.data.sources.embedded import EmbeddedSource
from mnemax.data.sources.hf import HFSource
from mnemax.data.sources.jsonl import JsonlSource
from mnemax.data.sources.parquet import ParquetSource
from mnemax.data.sources.text import TextSource
from mnemax.data.tokenizers import load_tokenizer
from mnemax.errors import UserError


def read(source: SourceConfig, skip: bool = False) -> list[str]:
    return list(source.texts(BadItems(skip)))


def lines_of(texts: list[str]) -> bytes:
    return "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()


def write_text(folder: Path, texts: list[str]) -> SourceConfig:
    for i, text in enumerate(texts):
        (folder / "sub").mkdir(exist_ok=True)
        (folder / "sub" / f"{i:03d}.txt").write_text(text, newline="")
    return TextSource(path=str(folder))


def write_jsonl(folder: Path, texts: list[str]) -> SourceConfig:
    (folder / "a.jsonl").write_bytes(lines_of(texts[:5]) + b"\n  \n" + lines_of(texts[5:]).rstrip())
    return JsonlSource(path=str(folder / "a.jsonl"))


def write_gz(folder: Path, texts: list[str]) -> SourceConfig:
    members = gzip.compress(lines_of(texts[:5])) + gzip.compress(lines_of(texts[5:]))
    (folder / "a.jsonl.gz").write_bytes(members)
    return JsonlSource(path=str(folder / "a.jsonl.gz"))


def write_zst(folder: Path, texts: list[str]) -> SourceConfig:
    compress = zstandard.ZstdCompressor().compress
    (folder / "a.jsonl.zst").write_bytes(compress(lines_of(texts[:5])) + compress(lines_of(texts[5:])))
    return JsonlSource(path=str(folder / "a.jsonl.zst"))


def write_parquet(folder: Path, texts: list[str]) -> SourceConfig:
    table = pyarrow.table({"id": list(range(len(texts) + 1)), "body": [*texts[:5], None, *texts[5:]]})
    parquet.write_table(table, folder / "a.parquet", row_group_size=3)
    return ParquetSource(path=str(folder / "*.parquet"), field="body")


@pytest.mark.parametrize("write", [write_text, write_jsonl, write_gz, write_zst, write_parquet])
def test_gives_the_documents(tmp_path, documents, write: Callable[[Path, list[str]], SourceConfig]):
    assert read(write(tmp_path, documents)) == documents


def test_several_files_are_read_in_order(tmp_path):
    for i in range(12):
        (tmp_path / f"{i:02d}.jsonl").write_bytes(lines_of([str(i)]))
    (tmp_path / ".hidden").write_text("no document")
    assert read(JsonlSource(path=str(tmp_path))) == [str(i) for i in range(12)]


GOOD = lines_of(["good"])
BAD_FILES = {
    "empty.txt": (b"", "empty.txt is empty"),
    "nul.txt": (b"a\0b", "nul.txt is a binary file"),
    "latin.txt": ("é".encode("latin-1"), r"latin.txt is not UTF-8 text \(byte 0\)"),
    "empty.jsonl": (b"\n", "empty.jsonl is empty"),
    "malformed.jsonl": (GOOD + b'{"text": \n' + GOOD, r"malformed.jsonl:2: malformed JSON, .* at column"),
    "list.jsonl": (GOOD + b"[1]\n", "list.jsonl:2: a JSON list, where an object with the field 'text'"),
    "field.jsonl": (GOOD * 2 + b'{"body": "x"}\n', r"field.jsonl:3: no field 'text' \(it has 'body'\)"),
    "number.jsonl": (b'{"text": 3}\n' + GOOD, "number.jsonl:1: the field 'text' is 3, not a string"),
    "surrogate.jsonl": (GOOD + b'{"text": "\\ud800"}\n', "surrogate.jsonl:2: .* lone surrogate"),
    "binary.jsonl": (GOOD + b"\xff\xfe\n", r"binary.jsonl:2: not UTF-8"),
    "cut.jsonl.gz": (gzip.compress(GOOD * 999)[:-20], "cut.jsonl.gz cannot be read to its end"),
    "not.jsonl.gz": (GOOD, "not.jsonl.gz cannot be read to its end"),
    "cut.jsonl.zst": (
        zstandard.compress(np.random.default_rng(0).bytes(3000).hex().encode())[:-20],
        "cut.jsonl.zst cannot be read to",
    ),
    "cut.parquet": (b"PAR1" + bytes(50), "cut.parquet cannot be read"),
}


def source_of(path: Path) -> SourceConfig:
    kinds = {"txt": TextSource, "jsonl": JsonlSource, "parquet": ParquetSource}
    return kinds[path.name.split(".")[1]](path=str(path))


@pytest.mark.parametrize("name", BAD_FILES)
def test_bad_files(tmp_path, name):
    content, message = BAD_FILES[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message) as error:
        read(source_of(tmp_path / name))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("path", ["nowhere.txt", "nowhere/*.txt", "."])
@pytest.mark.parametrize("kind", [TextSource, JsonlSource, ParquetSource])
def test_missing_files(tmp_path, monkeypatch, kind, path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=f"^{path.replace('*', '[*]')} (does not exist|matches no file|holds no files)"):
        read(kind(path=path))


def test_parquet_without_the_column(tmp_path):
    parquet.write_table(pyarrow.table({"body": ["a"], "n": [1]}), tmp_path / "a.parquet")
    with pytest.raises(UserError, match=r"no column 'text' \(it has body, n\)"):
        read(ParquetSource(path=str(tmp_path / "a.parquet")))
    with pytest.raises(UserError, match="the column 'n' is int64, not a string"):
        read(ParquetSource(path=str(tmp_path / "a.parquet"), field="n"))


def test_skipping_bad_items_counts_them(tmp_path, caplog):
    (tmp_path / "a.jsonl").write_bytes(GOOD + b"{\n" + lines_of(["fine " * 20]) + b'{"no": "text"}\n')
    data = DataConfig(
        sources=[{"kind": "jsonl", "path": str(tmp_path / "a.jsonl")}],
        sequence_length=8,
        batch_size=2,
        validation_fraction=0,
        skip_bad=True,
    )
    with caplog.at_level(logging.WARNING):
        next(train_iterator(data, load_tokenizer(data.tokenizer), 0))
    assert [record.message.startswith("Skipped 2 bad items, the first: ") for record in caplog.records] == [True]
    assert "a.jsonl:2" in caplog.text


@pytest.mark.parametrize(
    ("texts", "fields", "message"),
    [
        (["short"], {"sequence_length": 64}, r"data.sources\[0\] \(.*a.jsonl\) has 6 tokens to train on, fewer than one row"),
        (["long " * 99], {"batch_size": 3}, r"data.batch_size \(3\) is not divisible by the number of processes \(2\)"),
    ],
)
def test_data_that_makes_no_batch(tmp_path, texts, fields, message):
    (tmp_path / "a.jsonl").write_bytes(lines_of(texts))
    sources = [{"kind": "jsonl", "path": str(tmp_path / "a.jsonl")}]
    data = DataConfig(**{"sources": sources, "sequence_length": 16, "batch_size": 2, "validation_fraction": 0, **fields})
    with pytest.raises(UserError, match=message):
        train_iterator(data, load_tokenizer(data.tokenizer), 0, 0, 2)


def test_nothing_held_out(tmp_path):
    (tmp_path / "a.txt").write_text("text " * 99)
    data = DataConfig(sources=[{"kind": "text", "path": str(tmp_path / "a.txt")}], validation_fraction=0)
    with pytest.raises(UserError, match="There is no held-out text"):
        validation_batches(data, load_tokenizer(data.tokenizer), 1)


class Examples(SourceConfig):
    """Ready-made examples, as a synthetic task gives them: the loss is on the last token only."""

    def open(self, tokenizer, bad):
        class Weighted(MemoryDocuments):
            def read(self, document, start, stop):
                return super().read(document, start, stop)[0], (np.arange(start, stop) == 4).astype(np.float32)

        return Weighted(np.arange(50), np.full(10, 5))


@pytest.mark.parametrize("packing", ["concat", "first_fit"])
def test_a_source_of_examples_sets_the_weights(packing):
    data = DataConfig.model_construct(
        **{
            **dict(DataConfig()),
            "sources": (Examples(),),
            "sequence_length": 8,
            "batch_size": 4,
            "packing": packing,
            "validation_fraction": 0,
        }
    )
    batches = train_iterator(data, load_tokenizer(BytesTokenizer()), 0)
    for _ in range(5):
        batch = next(batches)
        np.testing.assert_array_equal(batch["weights"], (batch["targets"] % 5 == 4) & (batch["segments"] > 0))


def test_embedded_text_is_clean():
    for source in (EmbeddedSource(), EmbeddedSource(split="validation")):
        for text in read(source):
            assert text.isascii()
            assert text == text.strip("\n") + "\n"
            assert "\n\n\n" not in text
            assert "\r" not in text
            assert " \n" not in text
            assert "gutenberg" not in text.lower()


def test_hf_datasets_is_an_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserError, match=r"needs the package `datasets`: install mnemax\[hf\]"):
        read(HFSource(path="anything"))


def test_hf_datasets(tmp_path, documents):
    pytest.importorskip("datasets")
    (tmp_path / "train.jsonl").write_bytes(lines_of(documents))
    assert read(HFSource(path=str(tmp_path))) == documents
    with pytest.raises(UserError, match="row 0: no text in the field 'body'"):
        read(HFSource(path=str(tmp_path), field="body"))
    with pytest.raises(UserError, match="nosplit"):
        read(HFSource(path=str(tmp_path), split="nosplit"))
