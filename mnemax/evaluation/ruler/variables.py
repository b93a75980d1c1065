"""Variable tracking."""

import random
import string
from dataclasses import dataclass
from itertools import pairwise
from typing import override

from mnemax.evaluation.ruler import DEPTHS, Sample
from mnemax.evaluation.ruler.haystacks import HaystackTask, plant
from mnemax.evaluation.ruler.words import distinct, letters, number


@dataclass(frozen=True, kw_only=True)
class Variables(HaystackTask):
    """All variables that have a value: one is set to it, each other is a copy of the one before, in RULER's vt."""

    new_tokens: int = 30
    hops: int = 4

    @override
    def sample(self, rng: random.Random, size: int, length: int) -> Sample:
        value = number(rng, 5)
        names = distinct(lambda: letters(rng, string.ascii_uppercase, 5), self.hops + 1)
        statements = [f"VAR {names[0]} = {value}.", *(f"VAR {copy} = VAR {of}." for of, copy in pairwise(names))]
        depths = sorted(rng.sample(DEPTHS, len(statements)))
        context = plant(self.sentences(rng, size), statements, depths)
        return Sample(
            f"Variables are assigned in the text below. Keep track of which value each of them has.\n\n{context}",
            f"\n\nWhich variables have the value {value}, set to it or by way of others?",
            f" The {len(names)} variables that have the value {value}:",
            tuple(names),
        )
