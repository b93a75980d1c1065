"""Random access to tokenised documents, and how they are divided."""

from collections.abc import Iterable
from typing import NamedTuple, Protocol

import numpy as np
from jaxtyping import Float, Integer

from mnemax.data.tokenizers import Tokenizer


class Documents(Protocol):
    """Tokenised documents, numbered from 0. Reading is deterministic and safe from several threads."""

    lengths: Integer[np.ndarray, " documents"]
    """Tokens of each document, the special ones at its ends included."""

    def read(self, document: int, start: int, stop: int) -> tuple[Integer[np.ndarray, " n"], Float[np.ndarray, " n"] | None]:
        """Tokens `start` to `stop` of a document, and the loss weight of predicting each; None: 1 everywhere."""
        ...


class MemoryDocuments:
    """Documents held in memory, end to end in one array."""

    def __init__(self, tokens: Integer[np.ndarray, " total"], lengths: Integer[np.ndarray, " documents"]) -> None:
        self.tokens = tokens
        self.lengths = lengths
        self.starts = np.concatenate([[0], np.cumsum(lengths)])

    def read(self, document: int, start: int, stop: int) -> tuple[Integer[np.ndarray, " n"], None]:
        first = self.starts[document]
        return self.tokens[first + start : first + stop], None


def tokenize(texts: Iterable[str], tokenizer: Tokenizer) -> MemoryDocuments:
    """Tokenises every text, in memory: 2 bytes a token, or 4 with a vocabulary over 65536."""
    documents = list(tokenizer.documents(texts))
    lengths = np.array([len(document) for document in documents], np.int64)
    return MemoryDocuments(np.concatenate(documents or [np.zeros(0, tokenizer.dtype)]), lengths)


class Spans(NamedTuple):
    """Parts of documents, each to be read as if it were one: `document[i]` from token `start[i]` to `stop[i]`."""

    document: Integer[np.ndarray, " n"]
    start: Integer[np.ndarray, " n"]
    stop: Integer[np.ndarray, " n"]

    @property
    def positions(self) -> Integer[np.ndarray, " n"]:
        """Input positions of each: every token but the last has a next one to predict."""
        return np.maximum(self.stop - self.start - 1, 0)

    def nonempty(self) -> "Spans":
        """Those that have a token to predict."""
        return Spans(*(field[self.positions > 0] for field in self))


def whole(documents: Documents) -> Spans:
    """Every document from end to end."""
    lengths = np.asarray(documents.lengths, np.int64)
    return Spans(np.arange(len(lengths)), np.zeros_like(lengths), lengths)


def hold_out(documents: Documents, fraction: float) -> tuple[Spans, Spans]:
    """Divides documents in two: for training, and held out.

    With k = 1 / fraction: every k-th document is held out, or the last k-th of each where there are fewer than k documents.
    """
    spans = whole(documents)
    if fraction == 0:
        return spans, Spans(*(field[:0] for field in spans))
    every = max(round(1 / fraction), 1)
    if len(spans.document) >= every:
        held = spans.document % every == every - 1
        return Spans(*(field[~held] for field in spans)), Spans(*(field[held] for field in spans))
    cut = spans.stop - np.ceil(spans.stop * fraction).astype(np.int64)
    return spans._replace(stop=cut), spans._replace(start=cut)
