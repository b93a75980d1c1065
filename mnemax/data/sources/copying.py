"""Copying what was read: at once, or what lies between blanks."""

from typing import Literal, Self, override

import numpy as np
from jaxtyping import Integer
from pydantic import Field, model_validator

from mnemax.configs.base import PositiveInt
from mnemax.data.examples import ask
from mnemax.data.tasks import Example, TaskConfig


class CopyingTask(TaskConfig):
    """What `copy` and `selective_copy` share: content and blanks, COPY, then a blank for each token of the content to be said."""

    vocab_size: int = Field(16, ge=3)
    """Content, the blank and COPY."""
    length: PositiveInt = 256
    copied: PositiveInt = 16
    """Tokens of content."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.length < 2 * self.copied + 1:
            raise ValueError(f"copied ({self.copied}) takes length {2 * self.copied + 1} or more, not {self.length}")
        return self

    def places(self, rng: np.random.Generator) -> Integer[np.ndarray, " copied"]:
        """Where the content stands."""
        raise NotImplementedError

    @override
    def example(self, rng: np.random.Generator) -> Example:
        content = rng.integers(self.vocab_size - 2, size=self.copied)
        places = self.places(rng)
        tokens = np.full(self.length, self.vocab_size - 2)
        tokens[places] = content
        tokens[-self.copied - 1] = self.vocab_size - 1
        return ask(tokens, np.arange(self.length - self.copied, self.length), told=places, answers=content)

    @property
    @override
    def symbols(self) -> int:
        return self.vocab_size

    @property
    @override
    def chance(self) -> float:
        return 1 / (self.vocab_size - 2)


class CopyTask(CopyingTask):
    """Copying (MAD, Poli et al. 2024, arXiv 2403.17844): content, blanks, COPY, and the content is said over as many blanks.

    `c1 .. cn _ .. _ COPY _ .. _`, asked at the blanks after COPY. Tokens: 0 to vocab_size - 3 content, then the blank, then COPY.
    """

    kind: Literal["copy"] = "copy"

    @override
    def places(self, rng: np.random.Generator) -> Integer[np.ndarray, " copied"]:
        return np.arange(self.copied)


class SelectiveCopyTask(CopyingTask):
    """Selective copying (MAD, Poli et al. 2024, arXiv 2403.17844): as `copy`, with blanks strewn among the content.

    `_ c1 _ _ c2 .. cn COPY _ .. _`, asked at the blanks after COPY. Tokens: 0 to vocab_size - 3 content, then the blank, then COPY.
    """

    kind: Literal["selective_copy"] = "selective_copy"

    @override
    def places(self, rng: np.random.Generator) -> Integer[np.ndarray, " copied"]:
        n = self.copied
        blanks = rng.multinomial(self.length - 2 * n - 1, np.full(n, 1 / n))
        return np.arange(n) + np.cumsum(blanks)
