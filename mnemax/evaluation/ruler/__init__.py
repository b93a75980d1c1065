"""RULER (Hsieh et al. 2024, arXiv 2404.06654): long-context tasks in text, for any tokenizer and length.

A task is a file of this folder, `tasks.py` names them as the paper does, `fitting.py` makes a sample as long as allowed.
"""

import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

DEPTHS = tuple(i / 39 for i in range(40))
"""RULER's depths: a needle's is one of these, as likely as any other."""


class Sample(NamedTuple):
    """One question about a long context.

    Attributes:
        context: what is read first, the instruction included; it does not tell what will be asked.
        question: what is asked then.
        answer_prefix: how the answer begins, given to the model.
        answers: what its answer should contain.
        depth: how deep in the context lies what is asked for, as a fraction of its characters; None: in several places.
    """

    context: str
    question: str
    answer_prefix: str
    answers: tuple[str, ...]
    depth: float | None = None


@dataclass(frozen=True, kw_only=True)
class Task:
    """The base of every task."""

    new_tokens: int
    """How many tokens the model may answer with, in RULER."""
    any_answer: bool = False
    """One right answer is enough, instead of all."""

    @property
    def limit(self) -> int | None:
        """The largest size there is; None: any."""
        return None

    def smallest(self, length: int) -> int:
        """The least size that means something."""
        return 0

    def sample(self, rng: random.Random, size: int, length: int) -> Sample:
        """A sample with `size` pieces of haystack, meant for `length` tokens; its answers do not depend on `size`."""
        raise NotImplementedError

    def score(self, output: str, answers: Iterable[str]) -> float:
        """RULER's string_match_all, the share of the answers that the output contains, whatever their case; or string_match_part,
        1 if it contains any of them."""
        found = [answer.casefold() in output.casefold() for answer in answers]
        return float(any(found)) if self.any_answer else sum(found) / len(found)
