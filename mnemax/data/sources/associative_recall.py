"""Associative recall with one question."""

from typing import Literal, Self, override

import numpy as np
from pydantic import model_validator

from mnemax.configs.base import PositiveInt
from mnemax.data.examples import ask
from mnemax.data.tasks import Example, TaskConfig

BOS, EOS, KEYS = 0, 1, 2


class AssociativeRecallTask(TaskConfig):
    """Associative recall (Arora et al. 2025, arXiv 2505.15105): pairs without repeats, and the value of one key is asked for.

    `BOS k1 v1 .. kn vn EOS k v EOS`. Tokens: 0 BOS, 1 EOS, then `alphabet` keys, then `alphabet` values.
    """

    kind: Literal["associative_recall"] = "associative_recall"
    pairs: PositiveInt = 32
    alphabet: PositiveInt = 4096
    """How many keys there are to draw from, and how many values."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.pairs > self.alphabet:
            raise ValueError(f"pairs ({self.pairs}) must be at most alphabet ({self.alphabet}): no key comes twice")
        return self

    @override
    def example(self, rng: np.random.Generator) -> Example:
        tokens = np.empty(self.length, np.int64)
        pairs = tokens[1:-4].reshape(self.pairs, 2)
        pairs[:, 0] = KEYS + rng.choice(self.alphabet, self.pairs, replace=False)
        pairs[:, 1] = KEYS + self.alphabet + rng.choice(self.alphabet, self.pairs, replace=False)
        chosen = rng.integers(self.pairs)
        tokens[[0, -4, -1]] = BOS, EOS, EOS
        tokens[-3:-1] = pairs[chosen]
        return ask(tokens, np.array([self.length - 3]), told=2 + 2 * int(chosen))

    @property
    @override
    def length(self) -> int:
        return 2 * self.pairs + 5

    @property
    @override
    def symbols(self) -> int:
        return KEYS + 2 * self.alphabet

    @property
    @override
    def chance(self) -> float:
        return 1 / self.alphabet
