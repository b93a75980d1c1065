"""Loss on text: in bits a byte, by position, and on what the context already told."""

from typing import TYPE_CHECKING, Literal, NamedTuple, override

import numpy as np

from mnemax import registry
from mnemax.configs.base import PositiveInt
from mnemax.data.config import DataConfig
from mnemax.data.documents import Documents, Spans
from mnemax.data.examples import previous
from mnemax.data.pipeline import held_out_documents
from mnemax.data.sources.embedded import EmbeddedSource
from mnemax.data.tasks import TaskConfig
from mnemax.errors import UserError
from mnemax.evaluation.measures import MeasureConfig, Progress, Result, Subject
from mnemax.evaluation.scoring import scores
from mnemax.training.metrics import bits_per_byte

if TYPE_CHECKING:
    from mnemax.data.sources import SourceConfig as Source
    from mnemax.data.tokenizers import Tokenizer
else:
    Source = registry.union("source")


class LanguageConfig(MeasureConfig):
    """Loss on held-out text, each token once, with at most `context` tokens before it.

    In all (nats a token, and bits a byte, in which tokenizers compare), by position in the context, and on repeated bigrams (the
    pair of the last token and the right one stood in the context before) against the rest: Zoology's associative-recall hits
    (Arora et al. 2023, arXiv 2312.04927, section 3), where a memory that forgets is seen first.
    """

    kind: Literal["language"] = "language"
    source: Source | None = None
    """null: the text that the run validates on, or else the embedded held-out plays."""
    context: PositiveInt | None = None
    """Tokens of a window; null: the run's sequence length, or else the model's longest."""
    stride: PositiveInt | None = None
    """Each window begins this many tokens after the one before it, and counts only what is new; null: as long as a window."""
    tokens: PositiveInt = 131_072
    """Counted at most, in windows from all over the text."""

    @override
    def __call__(self, subject: Subject, progress: Progress) -> Result:
        model, data = subject.model, subject.data
        if model.tokenizer is None:
            raise UserError("The measure 'language' needs a tokenizer, and the folder has none.")
        context = self.context or (data.sequence_length if data else model.config.max_length)
        if context > model.config.max_length:
            longest = model.config.max_length
            raise UserError(f"The measure 'language' has context {context}, more than model.max_length ({longest}).")
        stride = min(self.stride or context, context)
        windows = [
            window
            for documents, spans in held_out_documents(self._data(data), model.tokenizer)
            for window in _windows(documents, spans, context, stride)
        ]
        if not windows:
            raise UserError("The measure 'language' found no text to predict: its source has none, or no document of two tokens.")
        windows = _thinned(windows, max(self.tokens // stride, 1))
        tokens = [window.documents.read(window.document, window.start, window.stop)[0] for window in windows]
        rows = ((row[:-1], row[1:]) for row in tokens)
        parts = []
        for window, row, score in zip(windows, tokens, scores(model, rows, context, subject.batch), strict=True):
            new = slice(window.counted, None)
            seen = previous(row[:-1].astype(np.int64) * model.config.vocab_size + row[1:]) >= 0
            parts.append((score.nll[new], np.arange(len(row) - 1)[new], seen[new], row[1:][new]))
            progress(len(parts), len(windows))
        return _result(*map(np.concatenate, zip(*parts, strict=True)), tokenizer=model.tokenizer) | {"context": context}

    def _data(self, data: DataConfig | None) -> DataConfig:
        if self.source is not None:
            return DataConfig(validation=(self.source,))
        if data is not None and not all(isinstance(source, TaskConfig) for source in data.validation or data.sources):
            return data
        return DataConfig(validation=(EmbeddedSource(split="validation"),))


class Window(NamedTuple):
    """Tokens `start` to `stop` of a document, the last of them only a target; targets from number `counted` on are counted."""

    documents: Documents
    document: int
    start: int
    stop: int
    counted: int


def _windows(documents: Documents, spans: Spans, context: int, stride: int) -> list[Window]:
    windows = []
    for document, start, stop in zip(*(field.tolist() for field in spans), strict=True):
        begin, counted_to = start, start + 1  # the first token of a document is no target
        while counted_to < stop:
            end = min(begin + context + 1, stop)
            windows.append(Window(documents, document, begin, end, counted_to - begin - 1))
            begin, counted_to = begin + stride, end
    return windows


def _thinned(windows: list[Window], most: int) -> list[Window]:
    if len(windows) <= most:
        return windows
    return [windows[i] for i in np.linspace(0, len(windows) - 1, most).round().astype(int)]


def _result(nll: np.ndarray, position: np.ndarray, seen: np.ndarray, targets: np.ndarray, *, tokenizer: "Tokenizer") -> Result:
    byte_count = float(tokenizer.token_bytes[targets].sum())
    bins, low, high = [], 0, 1
    while low <= position.max():
        inside = (position >= low) & (position < high)
        if inside.any():
            bins.append({"from": low, "to": high - 1, "loss": float(nll[inside].mean()), "tokens": int(inside.sum())})
        low, high = high, 2 * high
    part = lambda mask: {"loss": float(nll[mask].mean()) if mask.any() else None, "tokens": int(mask.sum())}  # noqa: E731
    return {
        "loss": float(nll.mean()),
        "tokens": len(nll),
        **({"bits_per_byte": bits_per_byte(float(nll.sum()), byte_count)} if byte_count else {}),
        "by_position": bins,
        "repeated_bigrams": part(seen),
        "other": part(~seen),
    }
