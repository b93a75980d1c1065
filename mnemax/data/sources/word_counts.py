"""Which words come often: what no single place of the context tells."""

import functools
from typing import Literal, Self, override

import numpy as np
from jaxtyping import Integer
from pydantic import Field, model_validator

from mnemax.configs.base import PositiveFloat, PositiveInt
from mnemax.data.examples import ask
from mnemax.data.tasks import Example, TaskConfig


class CommonWordsTask(TaskConfig):
    """Common words (RULER, Hsieh et al. 2024, arXiv 2404.06654), in tokens: the few words that come oftener than all the others.

    `w w' w'' .. ASK c1 .. cn`, asked at ASK and at every answer but the last; answers are in the order in which they first came.
    Tokens: words, then ASK. All of the context counts, so the distance of an answer is its position.
    """

    kind: Literal["common_words"] = "common_words"
    length: PositiveInt = 256
    words: PositiveInt = 256
    """Words to draw from."""
    common: PositiveInt = 10
    """Common words."""
    common_times: PositiveInt = 6
    """How often each of them comes."""
    other_times: PositiveInt = 1
    """How often every other word comes."""

    @property
    def _room(self) -> int:
        return self.length - 1 - self.common

    @property
    def _others(self) -> int:
        return -(-(self._room - self.common * self.common_times) // self.other_times)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.other_times >= self.common_times:
            raise ValueError(f"other_times ({self.other_times}) must be below common_times ({self.common_times})")
        if (needed := self.common * (self.common_times + 1) + 1) > self.length:
            raise ValueError(f"length ({self.length}) must be at least {needed}: common ({self.common}) words, common_times each")
        if (needed := self.common + self._others) > self.words:
            raise ValueError(f"words ({self.words}) must be at least {needed} to fill length ({self.length})")
        return self

    @override
    def example(self, rng: np.random.Generator) -> Example:
        room, others = self._room, self._others
        words = rng.choice(self.words, self.common + others, replace=False)
        times = np.repeat([self.common_times, self.other_times], [self.common, others])
        tokens = np.empty(self.length, np.int64)
        tokens[:room] = rng.permutation(np.repeat(words, times)[:room])
        tokens[room] = self.words
        common = words[: self.common]
        first = (tokens[:room] == common[:, None]).argmax(axis=1)
        tokens[room + 1 :] = common[first.argsort()]
        return ask(tokens, np.arange(room, self.length - 1), told=0)

    @property
    @override
    def symbols(self) -> int:
        return self.words + 1

    @property
    @override
    def chance(self) -> float:
        return 1 / self.words


@functools.lru_cache
def zeta_counts(total: int, ranks: int, alpha: float) -> Integer[np.ndarray, " used"]:
    """How often the word of each rank comes in `total`: in proportion to rank^-alpha, rounded down; the rest is rank 1."""
    weights = np.arange(1, ranks + 1) ** -alpha
    counts = (total * weights / weights.sum()).astype(np.int64)
    counts[0] += total - counts.sum()
    return counts[counts > 0]


class FrequentWordsTask(TaskConfig):
    """Frequent words (RULER, Hsieh et al. 2024, arXiv 2404.06654), in tokens: the most frequent words, most frequent first.

    `. w . w' . w .. ASK w w' w''`, asked at ASK and at every answer but the last. Frequencies follow a zeta law, whose first rank
    is the filler. Tokens: 0 filler, words, then ASK. All of the context counts, so the distance of an answer is its position.
    """

    kind: Literal["frequent_words"] = "frequent_words"
    length: PositiveInt = 256
    words: int = Field(64, ge=2)
    """Words to draw from."""
    alpha: PositiveFloat = 2.0
    """Exponent of the zeta law."""
    answers: PositiveInt = 3
    """Words asked for: those of rank 2 and up."""

    @property
    def _counts(self) -> np.ndarray:
        return zeta_counts(max(1, self.length - 1 - self.answers), self.words + 1, self.alpha)

    @model_validator(mode="after")
    def _ranked(self) -> Self:
        ranked = [*self._counts[1:].tolist(), 0][: self.answers + 1]
        if len(ranked) <= self.answers or len(set(ranked)) < len(ranked):
            raise ValueError(
                f"answers ({self.answers}) cannot be told apart: in length ({self.length}), with alpha ({self.alpha}) and "
                f"{self.words} words, some of the most frequent words come equally often"
            )
        return self

    @override
    def example(self, rng: np.random.Generator) -> Example:
        counts, room = self._counts, self.length - 1 - self.answers
        names = np.zeros(len(counts), np.int64)
        names[1:] = 1 + rng.choice(self.words, len(counts) - 1, replace=False)
        tokens = np.empty(self.length, np.int64)
        tokens[:room] = rng.permutation(np.repeat(names, counts))
        tokens[room] = self.words + 1
        tokens[room + 1 :] = names[1 : 1 + self.answers]
        return ask(tokens, np.arange(room, self.length - 1), told=0)

    @property
    @override
    def symbols(self) -> int:
        return self.words + 2

    @property
    @override
    def chance(self) -> float:
        return 1 / self.words
