"""Word problems of finite groups: keeping track of a state."""

import functools
import itertools
from typing import Literal, override

import numpy as np
from jaxtyping import Float, Integer

from mnemax.configs.base import PositiveInt
from mnemax.data.examples import uniform
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
def table(group: str) -> Integer[np.ndarray, "n n"]:
    """The multiplication table: which element the product of elements a and b is, `[a][b]`: a's permutation after b's."""
    elements = ELEMENTS[group]()
    number = {element: i for i, element in enumerate(elements)}
    return np.array([[number[tuple(a[i] for i in b)] for b in elements] for a in elements], np.int32)


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
        return Example(*(leaf[0] for leaf in self._of(rng.random((1, self.length)))))

    @override
    def number(self, number: int, seed: int = 0) -> Example:
        return Example(*(leaf[0] for leaf in self.several(np.array([number]), seed)))

    @override
    def several(self, numbers: Integer[np.ndarray, " B"], seed: int) -> Example:
        return self._of(uniform(self.stream(seed), numbers[:, None] * self.length + np.arange(self.length)))

    def _of(self, drawn: Float[np.ndarray, "B length"]) -> Example:
        products = table(self.group)
        tokens = (drawn * len(products)).astype(np.int32)
        prefixes = np.empty_like(tokens)
        prefixes[:, 0] = tokens[:, 0]
        for i in range(1, self.length):
            prefixes[:, i] = products[prefixes[:, i - 1], tokens[:, i]]
        return Example(tokens, prefixes, np.ones(tokens.shape, np.float32), np.broadcast_to(np.arange(self.length), tokens.shape))

    @property
    @override
    def symbols(self) -> int:
        return len(table(self.group))

    @property
    @override
    def chance(self) -> float:
        return 1 / self.symbols
