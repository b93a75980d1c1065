"""Word problems of finite groups: keeping track of a state."""

import functools
import itertools
from typing import Literal, override

import numpy as np

from mnemax.configs.base import PositiveInt
from mnemax.data.examples import draw_each
from mnemax.data.tasks import Example, TaskConfig

type Permutation = tuple[int, ...]


def _symmetric(n: int) -> list[Permutation]:
    return list(itertools.permutations(range(n)))


def _alternating(n: int) -> list[Permutation]:
    return [p for p in _symmetric(n) if sum(a > b for a, b in itertools.combinations(p, 2)) % 2 == 0]


def _cyclic(n: int) -> list[Permutation]:
    return [tuple((i + shift) % n for i in range(n)) for shift in range(n)]


def _product(first: list[Permutation], second: list[Permutation]) -> list[Permutation]:
    points = len(first[0])
    return [p + tuple(points + i for i in q) for p in first for q in second]


# As permutations, the identity first.
ELEMENTS = {
    "parity": lambda: _cyclic(2),
    "S3": lambda: _symmetric(3),
    "A4": lambda: _alternating(4),
    "S4": lambda: _symmetric(4),
    "A5": lambda: _alternating(5),
    "Z60": lambda: _cyclic(60),
    "A4xZ5": lambda: _product(_alternating(4), _cyclic(5)),
    "S5": lambda: _symmetric(5),
}


@functools.lru_cache
def table(group: str) -> list[list[int]]:
    """The multiplication table: which element the product of elements a and b is, `[a][b]`: a's permutation after b's."""
    elements = ELEMENTS[group]()
    number = {element: i for i, element in enumerate(elements)}
    return [[number[tuple(a[i] for i in b)] for b in elements] for a in elements]


@functools.lru_cache
def _everywhere(length: int) -> tuple[np.ndarray, np.ndarray]:
    """What is asked, and how far back it was told."""
    return np.ones(length, np.float32), np.arange(length)


class GroupWordsTask(TaskConfig):
    """Word problem of a group (Merrill et al. 2024, arXiv 2404.08819): the product of all elements read so far, at every position.

    `x1 x2 .. xn`, asked for x1, x1 x2, .., x1 .. xn. Tokens are the group's elements, 0 the identity. All that was
    read counts, so the distance of an answer is its position.
    """

    kind: Literal["group_words"] = "group_words"
    group: Literal["parity", "S3", "A4", "S4", "A5", "Z60", "A4xZ5", "S5"] = "S3"
    """Of 2, 6, 12, 24, 60, 60, 60 and 120 elements; A5 and S5 are not solvable."""
    length: PositiveInt = 20

    @override
    def example(self, rng: np.random.Generator) -> Example:
        products = table(self.group)
        tokens = draw_each(rng, len(products), self.length)
        prefixes = np.array(list(itertools.accumulate(tokens.tolist(), lambda a, b: products[a][b])))
        return Example(tokens, prefixes, *_everywhere(self.length))

    @property
    @override
    def symbols(self) -> int:
        return len(table(self.group))

    @property
    @override
    def chance(self) -> float:
        return 1 / self.symbols
