"""Joint recall: what a key means depends on its context."""

from typing import Literal, Self, override

import numpy as np
from pydantic import model_validator

from mnemax.configs.base import PositiveInt
from mnemax.data.examples import ask
from mnemax.data.tasks import Example, TaskConfig


class JointRecallTask(TaskConfig):
    """Joint recall (Zhan et al. 2025, arXiv 2507.00449): the value of a key, which is another one in every context.

    First every context with its pairs, `c k1 v .. kn v`; then the contexts again in another order, the keys of each in
    another order too, and after each key its value is asked for. Tokens: `alphabet` contexts, as many keys, as many values.
    """

    kind: Literal["joint_recall"] = "joint_recall"
    min_contexts: PositiveInt = 5
    max_contexts: PositiveInt = 16
    min_keys: PositiveInt = 5
    max_keys: PositiveInt = 16
    alphabet: PositiveInt = 16
    """How many contexts, keys and values there are to draw from."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        for name in "contexts", "keys":
            low, high = getattr(self, f"min_{name}"), getattr(self, f"max_{name}")
            if not low <= high <= self.alphabet:
                raise ValueError(f"min_{name} ({low}), max_{name} ({high}) and alphabet ({self.alphabet}) must rise in this order")
        return self

    @override
    def example(self, rng: np.random.Generator) -> Example:
        contexts = rng.choice(self.alphabet, rng.integers(self.min_contexts, self.max_contexts + 1), replace=False)
        keys = rng.choice(self.alphabet, rng.integers(self.min_keys, self.max_keys + 1), replace=False)
        values = rng.integers(self.alphabet, size=(len(contexts), len(keys)))
        order = rng.permutation(len(contexts))
        within = rng.random(values.shape).argsort(axis=1)
        tokens = np.empty((2, len(contexts), 1 + 2 * len(keys)), np.int64)
        tokens[:, :, 0] = contexts, contexts[order]
        tokens[0, :, 1::2], tokens[1, :, 1::2] = self.alphabet + keys, self.alphabet + keys[within]
        tokens[0, :, 2::2], tokens[1, :, 2::2] = 2 * self.alphabet + values, 2 * self.alphabet + values[order[:, None], within]
        place = np.arange(tokens.size).reshape(tokens.shape)
        told = place[0, order[:, None], 2 + 2 * within]
        return ask(tokens.ravel(), place[1, :, 1::2].ravel(), told.ravel())

    @property
    @override
    def length(self) -> int:
        return 2 * self.max_contexts * (1 + 2 * self.max_keys)

    @property
    @override
    def symbols(self) -> int:
        return 3 * self.alphabet

    @property
    @override
    def chance(self) -> float:
        return 1 / self.alphabet
