"""Preparing data: text tokenised once into array_record shards, and tokenizers trained on text."""

import json
import shutil
from collections.abc import Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from mnemax.data.bytelevel import train_bpe
from mnemax.data.config import BytesTokenizer, EmbeddedTokenizer, HFTokenizer
from mnemax.data.sources import BadItems, SourceConfig, reason
from mnemax.data.sources.jsonl import JsonlSource
from mnemax.data.sources.parquet import ParquetSource
from mnemax.data.sources.prepared import INDEX, LENGTHS, RECORD_TOKENS
from mnemax.data.sources.text import TextSource, find_files
from mnemax.data.tokenizers import Tokenizer, load_tokenizer
from mnemax.errors import UserError
from mnemax.files import refuse_taken, writing

SHARD_TOKENS = 100_000_000


def prepare(
    source: str | SourceConfig | Sequence[str | SourceConfig],
    out: str | Path,
    tokenizer: BytesTokenizer | EmbeddedTokenizer | HFTokenizer,
    shard_tokens: int = SHARD_TOKENS,
    skip_bad: bool = False,
) -> dict[str, Any]:
    """Tokenises text in a stream into the folder `out`, for sources of kind `prepared`. Returns its index.

    The folder appears under its name when it is complete: a killed process leaves `out.partial`, which the next one replaces.
    It holds `shard-*.array_record`, `lengths.npy` (tokens a document), `index.json` and the tokenizer.

    Raises:
        UserError: a source cannot be read or is empty, or `out` exists or cannot be written.
    """
    out = Path(out).expanduser()
    refuse_taken(out)
    sources = _sources(source)
    encode = load_tokenizer(tokenizer)
    bad = BadItems(skip_bad)
    with writing(out), _partial_folder(out) as partial:
        index = _write(partial, sources, encode, bad, shard_tokens)
        bad.summarize()
        if not index["documents"]:
            raise UserError(f"{', '.join(map(str, sources))} holds no documents; nothing was prepared.")
        if out.exists():
            out.rmdir()
        partial.rename(out)
    return index


@contextmanager
def _partial_folder(out: Path) -> Generator[Path]:
    """The folder's stand-in while it is written, gone if that fails."""
    partial = out.with_name(out.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def train_tokenizer(
    source: str | SourceConfig | Sequence[str | SourceConfig], out: str | Path, vocab_size: int, skip_bad: bool = False
) -> Tokenizer:
    """Trains a byte-level BPE on text and saves it in the folder `out`, as `tokenizer.json` and `tokenizer_config.json`.

    Raises:
        UserError: a source cannot be read, the vocabulary is too small for bytes, or `out` exists or cannot be written.
    """
    out = Path(out).expanduser()
    refuse_taken(out)
    bad = BadItems(skip_bad)
    sources = _sources(source)
    tokenizer = Tokenizer(train_bpe((text for each in sources for text in each.texts(bad)), vocab_size))
    bad.summarize()
    with writing(out):
        tokenizer.save(out)
    return tokenizer


def source_at(path: str) -> SourceConfig:
    """The source that a path means by the suffix of its first file: JSONL, Parquet, or else text."""
    name = find_files(path)[0].name
    if any(name.endswith(suffix) for suffix in (".jsonl", ".jsonl.gz", ".jsonl.zst")):
        return JsonlSource(path=path)
    return ParquetSource(path=path) if name.endswith(".parquet") else TextSource(path=path)


def _sources(source: str | SourceConfig | Sequence[str | SourceConfig]) -> list[SourceConfig]:
    listed = [source] if isinstance(source, str | SourceConfig) else source
    return [source_at(each) if isinstance(each, str) else each for each in listed]


def _write(folder: Path, sources: list[SourceConfig], tokenizer: Tokenizer, bad: BadItems, shard_tokens: int) -> dict[str, Any]:
    lengths: list[int] = []
    totals = {"tokens": 0, "bytes": 0}
    with _progress() as progress, _Shards(folder, shard_tokens) as shards:
        task = progress.add_task("", documents=0, **totals)
        for tokens in tokenizer.documents(text for source in sources for text in source.texts(bad)):
            shards.write(tokens)
            lengths.append(len(tokens))
            totals["tokens"] += len(tokens)
            totals["bytes"] += int(tokenizer.token_bytes[tokens].sum())
            progress.update(task, documents=len(lengths), **totals)
    np.save(folder / LENGTHS, np.array(lengths, np.int64))
    tokenizer.save(folder)
    index = {
        "documents": len(lengths),
        **totals,
        "skipped": bad.count,
        "shards": shards.names,
        "dtype": np.dtype(tokenizer.dtype).name,
        "record_tokens": RECORD_TOKENS,
        "vocab_size": tokenizer.vocab_size,
        "tokenizer": tokenizer.fingerprint,
        "sources": [source.model_dump() for source in sources],
    }
    (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n")
    return index


@contextmanager
def _array_record_errors() -> Generator[None]:
    """array_record's RuntimeErrors, by which it says what the file system refuses, as OSErrors."""
    try:
        yield
    except RuntimeError as error:
        raise OSError(reason(error).partition(";")[0]) from error


class _Shards(AbstractContextManager):
    """Writes documents as records of at most RECORD_TOKENS tokens, in files of about `shard_tokens`."""

    def __init__(self, folder: Path, shard_tokens: int) -> None:
        self.folder, self.shard_tokens = folder, shard_tokens
        self.names: list[str] = []
        self._writer: Any = None
        self._room = 0

    @_array_record_errors()
    def write(self, tokens: np.ndarray) -> None:
        for record in _records(tokens):
            if self._room <= 0:
                self._next_file()
            self._writer.write(record.tobytes())
            self._room -= len(record)

    def _next_file(self) -> None:
        from array_record.python.array_record_module import ArrayRecordWriter

        self._close()
        self.names.append(f"shard-{len(self.names):05}.array_record")
        self._writer = ArrayRecordWriter(str(self.folder / self.names[-1]), "group_size:1")
        self._room = self.shard_tokens

    @_array_record_errors()
    def _close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def __exit__(self, *error: object) -> None:
        self._close()


def _records(tokens: np.ndarray) -> Iterator[np.ndarray]:
    return (tokens[start : start + RECORD_TOKENS] for start in range(0, len(tokens), RECORD_TOKENS))


def _progress() -> Progress:
    console = Console()
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.fields[documents]:,} documents, {task.fields[bytes]:,} bytes, {task.fields[tokens]:,} tokens"),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    )
