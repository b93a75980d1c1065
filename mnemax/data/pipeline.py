"""Batches: sources to shuffled, packed, mixed rows, as a grain pipeline."""

import functools
import itertools

import grain
import numpy as np

from mnemax.data.config import DataConfig
from mnemax.data.documents import Documents, MemoryDocuments, Spans, hold_out, whole
from mnemax.data.packing import Pieces, Row, Rows, empty_row, first_fit
from mnemax.data.sources import BadItems, SourceConfig
from mnemax.data.tokenizers import Tokenizer
from mnemax.errors import UserError

type Batch = dict[str, np.ndarray]
"""`mnemax.data.packing.Row`s, stacked: [B, T]."""


def train_iterator(
    data: DataConfig,
    tokenizer: Tokenizer,
    seed: int,
    process_index: int = 0,
    process_count: int = 1,
) -> grain.DatasetIterator[Batch]:
    """This process's rows of every batch, for ever. `get_state` and `set_state` (JSON) resume it exactly.

    With `concat` packing a batch holds the same rows however many processes share it.

    Raises:
        UserError: a source cannot be read or is too small, or the batch does not divide by the processes.
    """
    rows = _rows_of_a_process(data, process_count)
    share = slice(process_index, None, process_count)
    weights = [source.weight for source in data.sources]
    opened = [_open(source, tokenizer, data.skip_bad) for source in data.sources]
    seeds = [int(np.random.SeedSequence((seed % 2**32, i)).generate_state(1)[0]) for i in range(len(opened))]
    parts = []
    for i, (source, documents) in enumerate(zip(data.sources, opened, strict=True)):
        spans = _training_part(data, source, documents)
        if (tokens := int(spans.positions.sum())) < data.sequence_length:
            raise UserError(
                f"data.sources[{i}] ({source}) has {tokens} tokens to train on, "
                f"fewer than one row of data.sequence_length ({data.sequence_length})."
            )
        parts.append(_items(data, documents, spans, seeds[i]))
    shuffled = [part.shuffle(seed=seed).repeat(None).map_with_index(read) for (part, read), seed in zip(parts, seeds, strict=True)]
    options = _read_options(opened)
    if data.packing == "concat":
        packed = grain.MapDataset.mix(shuffled, weights)[share].to_iter_dataset(options)
    else:
        packed = grain.IterDataset.mix(
            [first_fit(part[share].to_iter_dataset(options), data.sequence_length) for part in shuffled],
            weights,
        )
    return iter(packed.batch(rows))


def validation_batches(
    data: DataConfig,
    tokenizer: Tokenizer,
    batches: int,
    process_index: int = 0,
    process_count: int = 1,
) -> list[Batch]:
    """This process's rows of at most `batches` batches of held-out text, always the same ones, drawn from all over it.

    The last batch is padded with empty rows if the text ends in it.

    Raises:
        UserError: there is no held-out text, a source cannot be read, or the batch does not divide by the processes.
    """
    rows = _rows_of_a_process(data, process_count)
    opened = [(documents, spans) for documents, spans in _validation_parts(data, tokenizer) if spans.positions.any()]
    if not opened:
        raise UserError("There is no held-out text: name some in data.validation, or raise data.validation_fraction.")
    parts = [part.map_with_index(read) for part, read in (_items(data, *pair) for pair in opened)]
    dataset = grain.MapDataset.concatenate(parts).shuffle(seed=0)
    packed = dataset.to_iter_dataset(_read_options([documents for documents, _ in opened]))
    if data.packing == "first_fit":
        packed = first_fit(packed, data.sequence_length)
    share = slice(process_index * rows, (process_index + 1) * rows)
    first = itertools.islice(packed, batches * data.batch_size)
    return [_stack(batch, data, share) for batch in itertools.batched(first, data.batch_size)]


def _items(data: DataConfig, documents: Documents, spans: Spans, seed: int | None = None) -> tuple[grain.MapDataset, Rows | Pieces]:
    """What is shuffled, as numbers, and the function that reads one."""
    length = data.sequence_length
    items = Rows(documents, spans, length, seed) if data.packing == "concat" else Pieces(documents, spans, length)
    return grain.MapDataset.range(len(items)), items


def _stack(batch: tuple[Row, ...], data: DataConfig, share: slice) -> Batch:
    padding = [empty_row(data.sequence_length)] * (data.batch_size - len(batch))
    return {name: np.stack([row[name] for row in [*batch, *padding][share]]) for name in batch[0]}


def _rows_of_a_process(data: DataConfig, process_count: int) -> int:
    if data.batch_size % process_count:
        raise UserError(f"data.batch_size ({data.batch_size}) is not divisible by the number of processes ({process_count}).")
    return data.batch_size // process_count


def _training_part(data: DataConfig, source: SourceConfig, documents: Documents) -> Spans:
    if data.validation or source.held_out() is not None:
        return whole(documents)
    return hold_out(documents, data.validation_fraction)[0]


def _validation_parts(data: DataConfig, tokenizer: Tokenizer) -> list[tuple[Documents, Spans]]:
    parts = []
    for source in data.validation or data.sources:
        named = source if data.validation else source.held_out()
        documents = _open(named or source, tokenizer, data.skip_bad)
        parts.append(
            (
                documents,
                whole(documents) if named else hold_out(documents, data.validation_fraction)[1],
            )
        )
    return parts


@functools.lru_cache(maxsize=16)
def _open(source: SourceConfig, tokenizer: Tokenizer, skip_bad: bool) -> Documents:
    """Opened once for training and validation."""
    bad = BadItems(skip_bad)
    documents = source.open(tokenizer, bad)
    bad.summarize()
    return documents


def _read_options(opened: list[Documents]) -> grain.ReadOptions:
    """Threads read ahead from files; from memory they would only cost."""
    if all(isinstance(documents, MemoryDocuments) for documents in opened):
        return grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
    return grain.ReadOptions(num_threads=8, prefetch_buffer_size=64)
