"""Batches: sources to shuffled, packed, mixed rows, as a grain pipeline."""

import functools
import itertools
from typing import TypeGuard

import grain
import numpy as np

from mnemax.data.config import DataConfig
from mnemax.data.documents import Documents, MemoryDocuments, Spans, hold_out, whole
from mnemax.data.packing import Pieces, Row, Rows, TaskRows, empty_row, first_fit
from mnemax.data.sources import BadItems, SourceConfig
from mnemax.data.tasks import TaskConfig
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
    parts = []
    for i, source in enumerate(data.sources):
        own_seed = int(np.random.SeedSequence((seed % 2**32, i)).generate_state(1)[0])
        parts.append((own_seed, _training_items(data, source, f"data.sources[{i}]", tokenizer, own_seed)))
    every = [items for _, items in parts]
    if len(every) == 1 and _always_new(every[0]):
        return _batches_of(every[0], data.batch_size, share)
    datasets = [_shuffled(items, own_seed) for own_seed, items in parts]
    if data.packing == "concat":
        mixed = grain.MapDataset.mix(datasets, weights)
        return iter(mixed[share].batch(rows).to_iter_dataset(_read_options(every, ahead=8)))
    options = _read_options(every)
    shares = [_packed(data, items, dataset[share].to_iter_dataset(options)) for items, dataset in zip(every, datasets, strict=True)]
    return iter(grain.IterDataset.mix(shares, weights).batch(rows))


def _always_new(items: "Items") -> TypeGuard[TaskRows]:
    return isinstance(items, TaskRows) and items.task.examples is None


def _shuffled(items: "Items", seed: int) -> grain.MapDataset[Row]:
    order = grain.MapDataset.range(len(items))
    if not _always_new(items):  # of which there is nothing to shuffle, nothing to repeat
        order = order.shuffle(seed=seed).repeat(None)
    return order.map_with_index(items)


def _batches_of(items: TaskRows, batch_size: int, share: slice) -> grain.DatasetIterator[Batch]:
    """One process's rows of batches that hold one row after another: grain counts batches, which are each made as a whole."""
    batches = grain.MapDataset.range(len(items) // batch_size)
    own = batches.map(lambda i: items.batch(range(i * batch_size, (i + 1) * batch_size)[share]))
    return iter(own.to_iter_dataset(_read_options([items])))


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
    parts = [items for items in _validation_items(data, tokenizer, batches * data.batch_size) if len(items)]
    if not parts:
        raise UserError("There is no held-out text: name some in data.validation, or raise data.validation_fraction.")
    numbered = [grain.MapDataset.range(len(items)).map_with_index(items) for items in parts]
    dataset = grain.MapDataset.concatenate(numbered).shuffle(seed=0)
    packed = _packed(data, parts[0], dataset.to_iter_dataset(_read_options(parts)))
    share = slice(process_index * rows, (process_index + 1) * rows)
    first = itertools.islice(packed, batches * data.batch_size)
    return [_stack(batch, data, share) for batch in itertools.batched(first, data.batch_size)]


type Items = Rows | Pieces | TaskRows
"""What is shuffled: `len` numbers, and the function that reads one."""


def _items(data: DataConfig, documents: Documents, spans: Spans, seed: int | None = None) -> Rows | Pieces:
    length = data.sequence_length
    return Rows(documents, spans, length, seed) if data.packing == "concat" else Pieces(documents, spans, length)


def _packed(data: DataConfig, items: Items, dataset: grain.IterDataset) -> grain.IterDataset:
    return first_fit(dataset, data.sequence_length) if isinstance(items, Pieces) else dataset


def _stack(batch: tuple[Row, ...], data: DataConfig, share: slice) -> Batch:
    padding = [empty_row(data.sequence_length)] * (data.batch_size - len(batch))
    return {name: np.stack([row[name] for row in [*batch, *padding][share]]) for name in batch[0]}


def _rows_of_a_process(data: DataConfig, process_count: int) -> int:
    if data.batch_size % process_count:
        raise UserError(f"data.batch_size ({data.batch_size}) is not divisible by the number of processes ({process_count}).")
    return data.batch_size // process_count


def _training_items(data: DataConfig, source: SourceConfig, where: str, tokenizer: Tokenizer, seed: int) -> Items:
    if isinstance(source, TaskConfig):
        return _task_rows(data, source, where, tokenizer, seed)
    documents = _open(source, tokenizer, data.skip_bad)
    own_split = data.validation or source.held_out() is not None
    spans = whole(documents) if own_split else hold_out(documents, data.validation_fraction)[0]
    if (tokens := int(spans.positions.sum())) < data.sequence_length:
        raise UserError(
            f"{where} ({source}) has {tokens} tokens to train on, "
            f"fewer than one row of data.sequence_length ({data.sequence_length})."
        )
    return _items(data, documents, spans, seed)


def held_out_documents(data: DataConfig, tokenizer: Tokenizer) -> list[tuple[Documents, Spans]]:
    """The held-out text of every source of text, and which parts of it are held out."""
    sources = data.validation or data.sources
    return [_held_out(data, tokenizer, source) for source in sources if not isinstance(source, TaskConfig)]


def _held_out(data: DataConfig, tokenizer: Tokenizer, source: SourceConfig) -> tuple[Documents, Spans]:
    named = source if data.validation else source.held_out()
    documents = _open(named or source, tokenizer, data.skip_bad)
    return documents, whole(documents) if named else hold_out(documents, data.validation_fraction)[1]


def _validation_items(data: DataConfig, tokenizer: Tokenizer, rows: int) -> list[Items]:
    """Of every source; of tasks, as many rows together as are wanted at most."""
    sources = data.validation or data.sources
    parts: list[Items] = []
    for i, source in enumerate(sources):
        if isinstance(source, TaskConfig):
            where = f"data.{'validation' if data.validation else 'sources'}[{i}]"
            share = -(-rows // len(sources)) * max(data.sequence_length // source.length, 1)
            task = source.held_out().model_copy(update={"examples": share})
            parts.append(_task_rows(data, task, where, tokenizer, seed=0))
            continue
        documents, spans = _held_out(data, tokenizer, source)
        if spans.positions.any():
            parts.append(_items(data, documents, spans))
    if len({type(items) for items in parts}) > 1 and data.packing == "first_fit":
        raise UserError("data.validation mixes text and tasks, which data.packing=first_fit cannot; use data.packing=concat.")
    return parts


def _task_rows(data: DataConfig, task: TaskConfig, where: str, tokenizer: Tokenizer, seed: int) -> TaskRows:
    name = f"{where} ({task})"
    if task.symbols > tokenizer.vocab_size:
        raise UserError(
            f"{name} has {task.symbols} symbols, which data.tokenizer, of {tokenizer.vocab_size} ids, cannot spell; "
            f"set data.tokenizer={{kind: symbols, vocab_size: {task.symbols}}}."
        )
    if task.length > data.sequence_length:
        raise UserError(f"{name} has examples of {task.length} tokens, more than data.sequence_length ({data.sequence_length}).")
    return TaskRows(task, data.sequence_length, seed)


@functools.lru_cache(maxsize=16)
def _open(source: SourceConfig, tokenizer: Tokenizer, skip_bad: bool) -> Documents:
    """Opened once for training and validation."""
    bad = BadItems(skip_bad)
    documents = source.open(tokenizer, bad)
    bad.summarize()
    return documents


def _read_options(parts: list[Items], ahead: int = 64) -> grain.ReadOptions:
    """Threads read so many elements ahead from files; from memory they would only cost."""
    if all(isinstance(items, TaskRows) or isinstance(items.documents, MemoryDocuments) for items in parts):
        return grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
    return grain.ReadOptions(num_threads=8, prefetch_buffer_size=ahead)
