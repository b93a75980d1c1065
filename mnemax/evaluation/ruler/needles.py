"""Needles in a haystack, and the pass key."""

import random
from dataclasses import dataclass
from typing import Literal, override

from mnemax.evaluation.ruler import DEPTHS, Sample
from mnemax.evaluation.ruler.haystacks import HaystackTask, plant
from mnemax.evaluation.ruler.words import PAIRS, distinct, number, pair, random_uuid

NEEDLE = "One of the special magic {what} for {key} is: {value}."


@dataclass(frozen=True, kw_only=True)
class Needles(HaystackTask):
    """The values that the text gives for a key, in RULER's niah_*."""

    new_tokens: int = 128
    haystack: Literal["noise", "text", "needles"] = "text"
    keys: int = 1
    values: int = 1
    """Of each key."""
    queries: int = 1
    """Keys that are asked for."""
    key_type: Literal["words", "uuids"] = "words"
    value_type: Literal["numbers", "uuids"] = "numbers"
    depth: float | None = None
    """Of what is asked for; None: one of RULER's, drawn."""

    @property
    @override
    def limit(self) -> int | None:
        return PAIRS // 2 if self.haystack == "needles" and self.key_type == "words" else None

    @override
    def sample(self, rng: random.Random, size: int, length: int) -> Sample:
        planted = self.keys * self.values
        keys = distinct(lambda: self._key(rng), self.keys)
        values = distinct(lambda: self._value(rng), planted)
        depths = rng.sample(DEPTHS, planted)
        if self.depth is not None:
            depths[0] = self.depth
        needles = [self._needle(keys[i // self.values], value) for i, value in enumerate(values)]
        hay = self._distractors(rng, size, keys, values) if self.haystack == "needles" else self.sentences(rng, size)
        context = plant(hay, needles, depths)
        asked = keys[: self.queries]
        return Sample(
            f"Special magic {self.value_type} are hidden in the text below. Keep them in mind to be asked for them.\n\n{context}",
            f"\n\nWhich special magic {self.value_type} does the text give for {listed(asked)}?",
            f" The special magic {self.value_type} for {listed(asked)} that the text gives:",
            tuple(values[: self.queries * self.values]),
            depths[0] if self.queries * self.values == 1 else None,
        )

    def _distractors(self, rng: random.Random, size: int, keys: list[str], values: list[str]) -> list[str]:
        # Streams of their own, so that the first distractors are the same ones whatever the size.
        of_keys, of_values = random.Random(rng.random()), random.Random(rng.random())
        other_keys = distinct(lambda: self._key(of_keys), size, without=keys)
        other_values = distinct(lambda: self._value(of_values), size, without=values)
        return [self._needle(key, value) for key, value in zip(other_keys, other_values, strict=True)]

    def _key(self, rng: random.Random) -> str:
        return pair(rng) if self.key_type == "words" else random_uuid(rng)

    def _value(self, rng: random.Random) -> str:
        return number(rng, 7) if self.value_type == "numbers" else random_uuid(rng)

    def _needle(self, key: str, value: str) -> str:
        return NEEDLE.format(what=self.value_type, key=key, value=value)


@dataclass(frozen=True, kw_only=True)
class PassKey(HaystackTask):
    """The pass key that the text told (Mohtashami and Jaggi 2023, arXiv 2305.16300)."""

    new_tokens: int = 16
    depth: float | None = None

    @override
    def sample(self, rng: random.Random, size: int, length: int) -> Sample:
        key = number(rng, 5)
        depth = rng.choice(DEPTHS) if self.depth is None else self.depth
        needle = f"The pass key is {key}. Remember it: {key} is the pass key."
        context = plant(self.sentences(rng, size), [needle], [depth])
        return Sample(
            f"A pass key is hidden in the text below, most of which does not matter. Find it and remember it.\n\n{context}",
            "\n\nWhat is the pass key?",
            " The pass key is",
            (key,),
            depth,
        )


def listed(words: list[str]) -> str:
    """As in `a, b and c`."""
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))
