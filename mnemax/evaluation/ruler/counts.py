"""Words that come most often."""

import random
import string
from dataclasses import dataclass
from typing import override

import numpy as np
from jaxtyping import Float

from mnemax.evaluation.ruler import Sample, Task
from mnemax.evaluation.ruler.words import distinct, english, letters

SHORT = 4096  # below this, RULER's common words come 6 times and the others once; from here on 30 times and 3 times


@dataclass(frozen=True, kw_only=True)
class CommonWords(Task):
    """The ten words of a numbered list that come oftener than all the others, after a worked example, in RULER's cwe."""

    new_tokens: int = 120
    common: int = 10

    @property
    @override
    def limit(self) -> int:
        return len(english()) // 2

    @override
    def sample(self, rng: random.Random, size: int, length: int) -> Sample:
        short = length < SHORT
        shown = distinct(lambda: rng.choice(english()), 2 * self.common)
        example = self._list(rng, shown[: self.common], shown[self.common :], *((3, 1) if short else (10, 3)))
        words = distinct(lambda: rng.choice(english()), self.common + size, without=shown)
        common = words[: self.common]
        asked = self._list(rng, common, words[self.common :], *((6, 1) if short else (30, 3)))
        question = f"\n\nWhich {self.common} words come most often in this list?"
        prefix = f" The {self.common} words that come most often:"
        instruction = "Below is a numbered list in which some words come more often than others. Keep in mind which.\n\n"
        return Sample(
            f"{instruction}{example}{question}{prefix} {', '.join(shown[: self.common])}\n\n{instruction}{asked}",
            question,
            prefix,
            tuple(common),
        )

    @staticmethod
    def _list(rng: random.Random, common: list[str], others: list[str], common_times: int, other_times: int) -> str:
        words = common * common_times + others * other_times
        rng.shuffle(words)
        return " ".join(f"{i}. {word}" for i, word in enumerate(words, 1))


@dataclass(frozen=True, kw_only=True)
class FrequentWords(Task):
    """The three most frequent words of a coded text, whose frequencies follow a zeta law, in RULER's fwe."""

    new_tokens: int = 50
    alpha: float = 2.0
    answers: int = 3

    @override
    def smallest(self, length: int) -> int:
        """So many words that no two of the ranks that matter come equally often."""
        return int(np.ceil(1 / (-np.diff(self._law(length))[1 : self.answers + 1]).min()))

    @override
    def sample(self, rng: random.Random, size: int, length: int) -> Sample:
        law = self._law(length)
        words = distinct(lambda: letters(rng, string.ascii_lowercase, 6), len(law) - 1)
        counts = np.floor(size * law[1:]).astype(int).tolist()
        text = [word for word, count in zip(words, counts, strict=True) for _ in range(count)]
        text += ["..."] * (size - len(text))
        rng.shuffle(text)
        return Sample(
            "Below is a coded text. Keep track of how often each coded word comes; the dots are no word.\n\n" + " ".join(text),
            f"\n\nWhich {self.answers} coded words come most often?",
            f" The {self.answers} coded words that come most often:",
            tuple(words[: self.answers]),
        )

    def _law(self, length: int) -> Float[np.ndarray, " ranks"]:
        """The share of each rank; the first one is the dots."""
        weights = np.arange(1, max(length // 50, self.answers + 2) + 1) ** -self.alpha
        return weights / weights.sum()
