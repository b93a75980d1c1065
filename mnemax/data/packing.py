"""Documents to rows of one length.

`Rows` packs end to end by random access: an epoch is one stream of its documents in a new order, and a row is a slice of it. So
rows can be shuffled globally after packing, and the state of an iterator is one index. `Pieces` and `first_fit` never cut a
document that fits a row. `TaskRows` makes the examples of a task, whole ones alone.
"""

import grain
import numpy as np
from grain.experimental import FirstFitPackIterDataset

from mnemax.data.documents import Documents, Spans
from mnemax.data.tasks import UNLIMITED, TaskConfig

type Row = dict[str, np.ndarray]
"""`inputs, targets, positions, segments` int32 [T] and `weights` float32 [T].

`targets` are the next tokens of the same document. `segments` count from 1 and each is one interval; `positions` restart at 0 in
each: a document, or as much of it as is in the row. Padding has segment, position and weight 0.
"""

BINS = 64
_FIELDS = {"inputs": np.int32, "targets": np.int32, "weights": np.float32}
_PIECE = np.dtype(list(_FIELDS.items()))


class Rows:
    """Every row of every epoch, as a function of its index. With a seed, each epoch has an order and a start of its own, and drops
    what does not fill a row; without, the order is that of the documents, and the last row is padded.
    """

    def __init__(self, documents: Documents, spans: Spans, length: int, seed: int | None = None) -> None:
        self.documents, self.length, self.seed = documents, length, seed
        self.spans = spans.nonempty()
        self.total = int(self.spans.positions.sum())
        self.count = self.total // length if seed is not None else -(-self.total // length)
        self._epochs: dict[int, tuple[np.ndarray, np.ndarray, int]] = {}

    def __len__(self) -> int:
        return self.count

    def __call__(self, index: int, row: int) -> Row:
        """Row number `row` of the epoch that `index`, counted over all epochs, is in."""
        epoch = index // self.count
        order, ends, offset = self._ordered(epoch)
        out = empty_row(self.length)
        filled = segment = 0
        begin, stop = (
            row * self.length,
            self.total if self.seed is None else (row + 1) * self.length,
        )
        while filled < self.length and begin + filled < stop:
            at = (begin + filled + offset) % self.total
            rank = int(np.searchsorted(ends, at, side="right"))
            span, n = order[rank], min(int(ends[rank]) - at, self.length - filled)
            first = self.spans.stop[span] - 1 - (ends[rank] - at)
            segment += 1
            _fill(
                out,
                slice(filled, filled + n),
                segment,
                *self.documents.read(self.spans.document[span], first, first + n + 1),
            )
            filled += n
        return out

    def _ordered(self, epoch: int) -> tuple[np.ndarray, np.ndarray, int]:
        """`_stream` of an epoch, remembered of the latest two: at its end threads read rows of either."""
        known = self._epochs  # replaced as a whole, never changed
        if epoch not in known:
            known = self._epochs = dict([*list(known.items())[-1:], (epoch, self._stream(epoch))])
        return known[epoch]

    def _stream(self, epoch: int) -> tuple[np.ndarray, np.ndarray, int]:
        """The order of the spans in an epoch, where each ends in its stream, and where its first row starts."""
        order, offset = np.arange(len(self.spans.document)), 0
        if self.seed is not None:
            rng = np.random.default_rng((self.seed, epoch % 2**32))
            order, offset = rng.permutation(order), int(rng.integers(self.total))
        return order, np.cumsum(self.spans.positions[order]), offset


class Pieces:
    """Documents cut into as few pieces of at most `length` as hold them, as a function of the piece's index."""

    def __init__(self, documents: Documents, spans: Spans, length: int) -> None:
        self.documents, self.length = documents, length
        self.spans = spans.nonempty()
        self.ends = np.cumsum(-(-self.spans.positions // length))

    def __len__(self) -> int:
        return int(self.ends[-1])

    def __call__(self, index: int, piece: int) -> dict[str, np.ndarray]:
        """The piece as one structured array, which grain's packers move as a whole."""
        span = int(np.searchsorted(self.ends, piece, side="right"))
        stop = self.spans.stop[span]
        first = self.spans.start[span] + self.length * (piece - (self.ends[span - 1] if span else 0))
        tokens, weights = self.documents.read(self.spans.document[span], first, min(first + self.length + 1, stop))
        out = np.zeros(len(tokens) - 1, _PIECE)
        out["inputs"], out["targets"] = tokens[:-1], tokens[1:]
        out["weights"] = 1 if weights is None else weights[1:]
        return {"tokens": out}


class TaskRows:
    """Rows of a task's examples as a function of the row's number: as many whole ones as fit, each a segment."""

    def __init__(self, task: TaskConfig, length: int, seed: int) -> None:
        self.task, self.length, self.seed = task, length, seed
        self.in_row = length // task.length
        self.examples = UNLIMITED if task.examples is None else task.examples
        self.positions = np.arange(length)

    def __len__(self) -> int:
        return -(-self.examples // self.in_row)

    def __call__(self, index: int, row: int) -> Row:
        out = empty_row(self.length)
        self._fill(out, row)
        return out

    def batch(self, rows: range) -> Row:
        """Several rows at once, [len(rows), length]: sooner made than rows that are stacked."""
        out = empty_row((len(rows), self.length))
        numbers = (np.array(rows)[:, None] * self.in_row + np.arange(self.in_row)).ravel()
        if (several := self.task.several(numbers, self.seed)) is None:
            for i, row in enumerate(rows):
                self._fill({name: leaf[i] for name, leaf in out.items()}, row)
            return out
        size = self.task.length
        at = slice(self.in_row * size)
        for name, leaf in (("inputs", several.inputs), ("targets", several.targets), ("weights", several.asked)):
            out[name][:, at] = leaf.reshape(len(rows), -1)
        out["positions"][:, at] = np.tile(self.positions[:size], self.in_row)
        out["segments"][:, at] = np.repeat(np.arange(self.in_row) + 1, size)
        return out

    def _fill(self, out: Row, row: int) -> None:
        filled = 0
        first = row * self.in_row
        for segment, number in enumerate(range(first, min(first + self.in_row, self.examples)), 1):
            example = self.task.number(number, self.seed)
            at = slice(filled, filled := filled + len(example.inputs))
            out["inputs"][at], out["targets"][at], out["weights"][at] = example.inputs, example.targets, example.asked
            out["positions"][at] = self.positions[: len(example.inputs)]
            out["segments"][at] = segment


def first_fit(pieces: grain.IterDataset, length: int) -> grain.IterDataset[Row]:
    """Rows of whole pieces, each in the first of BINS open rows that has room."""
    packed = FirstFitPackIterDataset(pieces, length_struct={"tokens": length}, num_packing_bins=BINS)
    return packed.map(
        lambda row: {
            **{name: np.ascontiguousarray(row["tokens"][name]) for name in _FIELDS},
            "positions": row["tokens_positions"],
            "segments": row["tokens_segment_ids"],
        }
    )


def empty_row(shape: int | tuple[int, int]) -> Row:
    """A row of padding, or several."""
    row = {name: np.zeros(shape, np.int32) for name in ("inputs", "targets", "positions", "segments")}
    return row | {"weights": np.zeros(shape, np.float32)}


def _fill(row: Row, at: slice, segment: int, tokens: np.ndarray, weights: np.ndarray | None) -> None:
    row["inputs"][at], row["targets"][at] = tokens[:-1], tokens[1:]
    row["positions"][at] = np.arange(at.stop - at.start)
    row["segments"][at] = segment
    row["weights"][at] = 1 if weights is None else weights[1:]
