"""In-context recall of MAD: keys come again and again, each with the value it had first."""

from typing import Literal, Self, override

import numpy as np
from pydantic import Field, model_validator

from mnemax.configs.base import Fraction, PositiveInt
from mnemax.data.examples import ask, previous
from mnemax.data.tasks import Example, TaskConfig


class PairRecallTask(TaskConfig):
    """What `in_context_recall` and `noisy_recall` share: pairs of a key and its value."""

    vocab_size: int = Field(16, ge=2)
    """Keys and values."""
    length: int = Field(128, ge=4)
    """Tokens; even."""

    @model_validator(mode="after")
    def _even(self) -> Self:
        if self.length % 2:
            raise ValueError(f"length ({self.length}) is odd; it must be even, as pairs of tokens are")
        return self

    @property
    @override
    def chance(self) -> float:
        return 1 / (self.vocab_size - self.vocab_size // 2)


class InContextRecallTask(PairRecallTask):
    """In-context recall (MAD, Poli et al. 2024, arXiv 2403.17844): the value of every key that was seen before.

    `k v k v ..`; a key's value is drawn once an example, and asked for whenever the key comes back, as the last one always
    does. Tokens: the first half of the vocabulary is keys, the rest values.
    """

    kind: Literal["in_context_recall"] = "in_context_recall"

    @override
    def example(self, rng: np.random.Generator) -> Example:
        return _recall(rng, self.vocab_size, self.length)

    @property
    @override
    def symbols(self) -> int:
        return self.vocab_size


class NoisyRecallTask(PairRecallTask):
    """Noisy in-context recall (MAD, Poli et al. 2024, arXiv 2403.17844): as `in_context_recall`, with pairs of noise in between.

    `k v x x k v ..`. Tokens: keys, values, then `noise_symbols` of noise.
    """

    kind: Literal["noisy_recall"] = "noisy_recall"
    noise_symbols: PositiveInt = 16
    noise: Fraction = 0.2
    """The part of the pairs that is noise."""

    @override
    def example(self, rng: np.random.Generator) -> Example:
        return _recall(rng, self.vocab_size, self.length, self.noise, self.noise_symbols)

    @property
    @override
    def symbols(self) -> int:
        return self.vocab_size + self.noise_symbols


def _recall(rng: np.random.Generator, vocab_size: int, length: int, noise: float = 0.0, noise_symbols: int = 1) -> Example:
    pairs, half = length // 2, vocab_size // 2
    keys = rng.integers(half, size=pairs)
    noisy = rng.random(pairs) < noise
    noisy[rng.integers(pairs - 1)] = noisy[-1] = False
    seen = np.bincount(keys[:-1][~noisy[:-1]]).nonzero()[0]
    keys[-1] = seen[rng.integers(len(seen))]
    tokens = np.empty((pairs, 2), np.int64)
    tokens[:, 0] = keys
    tokens[:, 1] = half + rng.integers(vocab_size - half, size=half)[keys]
    if noise:
        tokens[noisy] = vocab_size + rng.integers(noise_symbols, size=(noisy.sum(), 2))
        keys = np.where(noisy, -1 - np.arange(pairs), keys)
    before = previous(keys)
    again = (before >= 0).nonzero()[0]
    return ask(tokens.ravel(), 2 * again, told=2 * before[again] + 1)


class FuzzyRecallTask(TaskConfig):
    """Fuzzy in-context recall (MAD, Poli et al. 2024, arXiv 2403.17844): keys and values are motifs of one or several tokens.

    `_ .. _ k k v k v v v ..`; every token of a value is asked for when its key comes back, as the last one always does. Tokens:
    keys, as many values (or one more), then the blank that pads on the left. No token comes twice in a motif.
    """

    kind: Literal["fuzzy_recall"] = "fuzzy_recall"
    vocab_size: int = Field(16, ge=3)
    """Tokens of keys, of values, and the blank."""
    length: PositiveInt = 128
    key_tokens: PositiveInt = 3
    """Most tokens of a key; each number up to it is as likely."""
    value_tokens: PositiveInt = 3
    """Most tokens of a value; each number up to it is as likely."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if max(self.key_tokens, self.value_tokens) > (most := (self.vocab_size - 1) // 2):
            raise ValueError(
                f"key_tokens ({self.key_tokens}) and value_tokens ({self.value_tokens}) must be at most {most}, "
                f"the tokens of either sort in vocab_size ({self.vocab_size})"
            )
        if self.length < 2 * (self.key_tokens + self.value_tokens):
            raise ValueError(
                f"length ({self.length}) must be at least {2 * (self.key_tokens + self.value_tokens)}, "
                f"twice key_tokens ({self.key_tokens}) and value_tokens ({self.value_tokens})"
            )
        return self

    @override
    def example(self, rng: np.random.Generator) -> Example:
        half, longest = (self.vocab_size - 1) // 2, self.key_tokens + self.value_tokens
        keys, key_sizes = _motifs(rng, self.length // 2, half, self.key_tokens)
        values, value_sizes = _motifs(rng, self.length // 2, self.vocab_size - 1 - half, self.value_tokens)
        codes = (keys + 1) @ (half + 1) ** np.arange(self.key_tokens)
        _, first, which = np.unique(codes, return_index=True, return_inverse=True)
        values, sizes = values[first[which]], key_sizes + value_sizes[first[which]]

        fit = int(np.searchsorted(np.cumsum(sizes), self.length - longest, side="right"))
        pairs = np.append(np.arange(fit), rng.integers(fit))
        motifs = np.concatenate([keys, np.where(values < 0, -1, half + values)], axis=1)[pairs]
        tokens = np.full(self.length, self.vocab_size - 1)
        blanks = self.length - int(sizes[pairs].sum())
        tokens[blanks:] = motifs[motifs >= 0]

        ends = blanks + np.cumsum(sizes[pairs])
        starts = ends - sizes[pairs]
        before = previous(codes[pairs])
        pair, token = np.nonzero((values[pairs] >= 0) & (before >= 0)[:, None])
        at = starts[pair] + key_sizes[pairs[pair]] + token - 1
        return ask(tokens, at, told=at + 1 - (starts[pair] - starts[before[pair]]))

    @property
    @override
    def symbols(self) -> int:
        return self.vocab_size

    @property
    @override
    def chance(self) -> float:
        """One who has read j tokens of the motif guesses among those left; j are read as often as a motif is longer than j."""
        values, most = self.vocab_size - 1 - (self.vocab_size - 1) // 2, self.value_tokens
        return sum((most - j) / (values - j) for j in range(most)) / sum(most - j for j in range(most))


def _motifs(rng: np.random.Generator, count: int, symbols: int, most: int) -> tuple[np.ndarray, np.ndarray]:
    """`count` motifs of different tokens, [count, most] with -1 after each one's end, and how many tokens each has."""
    sizes = rng.integers(1, most + 1, size=count)
    motifs = rng.random((count, symbols)).argsort(axis=1)[:, :most]
    return np.where(np.arange(most) < sizes[:, None], motifs, -1), sizes
