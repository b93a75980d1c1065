"""What needles are hidden in."""

import functools
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from mnemax.data.sources import BadItems, SourceConfig
from mnemax.data.sources.embedded import EmbeddedSource
from mnemax.data.sources.text import TextSource
from mnemax.errors import UserError
from mnemax.evaluation.ruler import Task

NOISE = ("The grass is green.", "The sky is blue.", "The sun is yellow.", "Here we go.", "There and back again.")


@dataclass(frozen=True, kw_only=True)
class HaystackTask(Task):
    """The base of tasks that hide something in a haystack of sentences."""

    haystack: Literal["noise", "text", "needles"] = "noise"
    path: str | None = None
    """Where `text` comes from; None: the embedded held-out plays."""

    def sentences(self, rng: random.Random, size: int) -> list[str]:
        """`size` sentences: RULER's five again and again, or text from somewhere on, which goes round at its end."""
        sentences = NOISE if self.haystack == "noise" else text(self.path)
        start = 0 if self.haystack == "noise" else rng.randrange(len(sentences))
        return [sentences[(start + i) % len(sentences)] for i in range(size)]


@functools.cache
def text(path: str | None) -> tuple[str, ...]:
    """The sentences, or lines where these are shorter, of a text file, a glob or a folder; None: of the embedded held-out plays.

    Raises:
        UserError: there is no such file, or it holds no text.
    """
    source: SourceConfig = EmbeddedSource(split="validation") if path is None else TextSource(path=path)
    pieces = (piece for whole in source.texts(BadItems(skip=False)) for piece in re.split(r"(?<=[.!?])\s+|\n+", whole))
    found = tuple(" ".join(piece.split()) for piece in pieces if piece.strip())
    if not found:
        raise UserError(f"The haystack {path} has no text in it.")
    return found


def plant(pieces: Sequence[str], planted: Sequence[str], depths: Sequence[float], separator: str = " ") -> str:
    """The pieces, and each thing in the gap nearest to its depth, a fraction of all characters; equal depths keep the order."""
    ends = np.cumsum([0, *(len(piece) + len(separator) for piece in pieces)])
    gaps = [int(np.abs(ends - depth * ends[-1]).argmin()) for depth in depths]
    parts = list(pieces)
    for i in sorted(range(len(planted)), key=lambda i: (gaps[i], i), reverse=True):
        parts.insert(gaps[i], planted[i])
    return separator.join(parts)
