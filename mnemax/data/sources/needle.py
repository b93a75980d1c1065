"""Needles in a haystack, in tokens."""

from typing import Literal, Self, override

import numpy as np
from pydantic import Field, model_validator

from mnemax.configs.base import Fraction, PositiveInt
from mnemax.data.examples import ask, filler, spread
from mnemax.data.tasks import Example, TaskConfig


class NeedleTask(TaskConfig):
    """Needles in a haystack (RULER, Hsieh et al. 2024, arXiv 2404.06654), in tokens: the values that a key was said to have.

    `.. NEEDLE k v1 v2 v3 .. NEEDLE k' v1 v2 v3 .. QUERY k v1 v2 v3`, asked at the queried key and at every token of its values
    but the last. Tokens: filler, keys, values, NEEDLE, QUERY. In the filler each token has four successors.
    """

    kind: Literal["needle"] = "needle"
    length: PositiveInt = 256
    keys: PositiveInt | None = 1
    """Keys that are planted; null: as many as fit, a haystack made of needles."""
    distractors: PositiveInt | None = None
    """The haystack is so many other needles, said again and again; null: filler."""
    value_tokens: PositiveInt = 3
    """Tokens of a value."""
    values_of_one_key: PositiveInt = 1
    """Needles of every key, asked for in the order they came."""
    queries: PositiveInt = 1
    """Keys that are asked for, one after another."""
    depth: Fraction | None = None
    """How deep the needle asked for lies: 0 at the beginning, 1 right before the question; null: anywhere."""
    filler_symbols: PositiveInt = 64
    key_symbols: PositiveInt = 64
    value_symbols: int = Field(100, ge=2)

    @property
    def _question(self) -> int:
        return self.queries * (2 + self.values_of_one_key * self.value_tokens)

    @property
    def planted(self) -> int:
        """How many keys are planted."""
        needles_of_key = self.values_of_one_key * (2 + self.value_tokens)
        return self.keys or max(0, self.length - self._question) // needles_of_key

    @model_validator(mode="after")
    def _fits(self) -> Self:
        needed = max(1, self.planted) * self.values_of_one_key * (2 + self.value_tokens) + self._question
        if needed > self.length:
            raise ValueError(f"length ({self.length}) is too short for the needles and the question, which take {needed} tokens")
        if self.planted > self.key_symbols:
            raise ValueError(f"keys ({self.planted}) must be at most key_symbols ({self.key_symbols}): each is another token")
        if self.distractors is not None and self.planted + self.distractors > self.key_symbols:
            raise ValueError(
                f"keys ({self.planted}) and distractors ({self.distractors}) must together be at most "
                f"key_symbols ({self.key_symbols}): each is another token"
            )
        if self.queries > self.planted:
            raise ValueError(f"queries ({self.queries}) must be at most keys ({self.planted})")
        if self.depth is not None and self.queries * self.values_of_one_key > 1:
            raise ValueError(
                f"depth ({self.depth}) is that of one needle: "
                f"queries ({self.queries}) and values_of_one_key ({self.values_of_one_key}) must be 1"
            )
        return self

    @override
    def example(self, rng: np.random.Generator) -> Example:
        of_key, planted, room = self.values_of_one_key, self.planted, self.length - self._question
        size, others = 2 + self.value_tokens, self.distractors or 0
        rank = 0 if self.depth is None else round(self.depth * (planted - 1))
        unit = size if others else 1  # among needles a needle takes the place of one
        starts = room % unit + unit * spread(rng, planted * of_key, size // unit, room // unit, rank, self.depth)
        owner = np.arange(planted) if of_key == 1 else rng.permutation(np.repeat(np.arange(planted), of_key))
        keys = self.filler_symbols + rng.choice(self.key_symbols, planted + others, replace=False)
        first_value = self.filler_symbols + self.key_symbols
        values = first_value + rng.integers(self.value_symbols, size=(len(owner) + others, self.value_tokens))
        mark = first_value + self.value_symbols

        tokens = filler(rng, self.length, self.filler_symbols)
        said = np.column_stack([np.full(len(values), mark), keys[np.append(owner, planted + np.arange(others))], values])
        if others:
            places = tokens[room % size : room].reshape(-1, size)
            places[:] = said[len(owner) + np.arange(len(places)) % others]
        inside = np.arange(size)
        tokens[starts[:, None] + inside] = said[: len(owner)]

        chosen = rng.choice(planted, self.queries, replace=False) if self.depth is None else np.array([rank])
        needles = np.argsort(owner, kind="stable").reshape(planted, of_key)[chosen]
        question = tokens[room:].reshape(self.queries, -1)
        question[:, 0], question[:, 1] = mark + 1, keys[chosen]
        question[:, 2:] = values[needles].reshape(self.queries, -1)
        at = room + np.arange(question.size).reshape(question.shape)[:, 1:-1]
        told = starts[needles][:, :, None] + inside[2:]
        return ask(tokens, at.ravel(), told.ravel())

    @property
    @override
    def symbols(self) -> int:
        return self.filler_symbols + self.key_symbols + self.value_symbols + 2

    @property
    @override
    def chance(self) -> float:
        return 1 / self.value_symbols
