"""Multi-query associative recall."""

import functools
from typing import Literal, Self, override

import numpy as np
from jaxtyping import Float
from pydantic import model_validator

from mnemax.configs.base import PositiveFloat, PositiveInt
from mnemax.data.examples import ask, draw, draw_weighted
from mnemax.data.tasks import Example, TaskConfig


@functools.lru_cache
def gap_weights(places: int, power: float) -> Float[np.ndarray, " places"]:
    """A power law over the places 1 to `places`."""
    return np.arange(1, places + 1) ** (power - 1)


class MqarTask(TaskConfig):
    """Multi-query associative recall (Zoology, Arora et al. 2023, arXiv 2312.04927): pairs, and later each key once more.

    `k1 v1 .. kn vn`, then filler in which every key stands once, an even number of tokens after the pairs; there its value is
    asked for, which the sequence itself never repeats. Tokens: 0 filler, 1 to vocab_size // 2 - 1 keys, the rest values.
    """

    kind: Literal["mqar"] = "mqar"
    vocab_size: PositiveInt = 8192
    length: PositiveInt = 64
    """Tokens; even."""
    pairs: PositiveInt = 4
    power: PositiveFloat = 0.01
    """A key comes back after 2(i - 1) tokens past the pairs with weight i^(power - 1); 1: anywhere alike."""
    random_fill: bool = True
    """Filler is tokens from all of the vocabulary; false: token 0."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.length % 2:
            raise ValueError(f"length ({self.length}) is odd; it must be even")
        if 4 * self.pairs > self.length:
            raise ValueError(f"pairs ({self.pairs}) take length {4 * self.pairs} or more, not {self.length}: 4 tokens each")
        if self.pairs >= self.vocab_size // 2:
            raise ValueError(
                f"pairs ({self.pairs}) must be below half of vocab_size ({self.vocab_size}): each key is another token"
            )
        return self

    @override
    def example(self, rng: np.random.Generator) -> Example:
        half, n = self.vocab_size // 2, self.pairs
        keys = 1 + draw(rng, half - 1, n)
        values = half + draw(rng, self.vocab_size - half, n)
        tokens = rng.integers(self.vocab_size, size=self.length) if self.random_fill else np.zeros(self.length, np.int64)
        tokens[0 : 2 * n : 2] = keys
        tokens[1 : 2 * n : 2] = values
        at = 2 * n + 2 * draw_weighted(rng, gap_weights(self.length // 2 - n, self.power), n)
        tokens[at] = keys
        return ask(tokens, at, told=np.arange(1, 2 * n, 2), answers=values)

    @property
    @override
    def symbols(self) -> int:
        return self.vocab_size

    @property
    @override
    def chance(self) -> float:
        return 1 / (self.vocab_size - self.vocab_size // 2)
