"""Variables that are copies of one another, in tokens."""

from typing import Literal, Self, override

import numpy as np
from pydantic import Field, model_validator

from mnemax.configs.base import PositiveInt
from mnemax.data.examples import ask, filler, spread
from mnemax.data.tasks import Example, TaskConfig

STATEMENT = 3


class VariableTrackingTask(TaskConfig):
    """Variable tracking (RULER, Hsieh et al. 2024, arXiv 2404.06654), in tokens: which variables have this value.

    `.. SET x1 n .. COPY x2 x1 .. COPY x3 x2 .. ASK n x1 x2 x3`, asked at n and at every variable after it but the last. Other
    chains stand in between. Tokens: filler, variables, values, SET, COPY, ASK. In the filler each token has four successors.
    """

    kind: Literal["variable_tracking"] = "variable_tracking"
    length: PositiveInt = 256
    chains: PositiveInt = 1
    """Values, each with variables of its own; one is asked for."""
    hops: PositiveInt = 4
    """Copies in a chain: it has one variable more."""
    filler_symbols: PositiveInt = 64
    variable_symbols: int = Field(64, ge=2)
    value_symbols: PositiveInt = 64

    @model_validator(mode="after")
    def _fits(self) -> Self:
        variables = self.chains * (self.hops + 1)
        if variables > self.variable_symbols:
            raise ValueError(
                f"chains ({self.chains}) of hops ({self.hops}) have {variables} variables, "
                f"more than variable_symbols ({self.variable_symbols})"
            )
        if self.chains > self.value_symbols:
            raise ValueError(f"chains ({self.chains}) must be at most value_symbols ({self.value_symbols}): each has another value")
        if (needed := STATEMENT * variables + 3 + self.hops) > self.length:
            raise ValueError(f"length ({self.length}) is too short for the statements and the question, which take {needed} tokens")
        return self

    @override
    def example(self, rng: np.random.Generator) -> Example:
        links, room = self.hops + 1, self.length - self.hops - 3
        first_value = self.filler_symbols + self.variable_symbols
        variables = self.filler_symbols + rng.choice(self.variable_symbols, (self.chains, links), replace=False)
        values = first_value + rng.choice(self.value_symbols, self.chains, replace=False)
        mark = first_value + self.value_symbols

        statements = np.empty((self.chains, links, STATEMENT), np.int64)
        statements[:, 0, 0], statements[:, 1:, 0] = mark, mark + 1
        statements[:, :, 1] = variables
        statements[:, 0, 2], statements[:, 1:, 2] = values, variables[:, :-1]
        # Chains are shuffled into one another; each keeps its order.
        chain_of_place = rng.permutation(np.repeat(np.arange(self.chains), links))
        starts = spread(rng, self.chains * links, STATEMENT, room)[np.argsort(chain_of_place, kind="stable")]
        starts = starts.reshape(self.chains, links)

        tokens = filler(rng, self.length, self.filler_symbols)
        tokens[starts[:, :, None] + np.arange(STATEMENT)] = statements
        chosen = rng.integers(self.chains)
        tokens[room], tokens[room + 1] = mark + 2, values[chosen]
        tokens[room + 2 :] = variables[chosen]
        return ask(tokens, np.arange(room + 1, self.length - 1), told=starts[chosen] + STATEMENT - 1)

    @property
    @override
    def symbols(self) -> int:
        return self.filler_symbols + self.variable_symbols + self.value_symbols + 3

    @property
    @override
    def chance(self) -> float:
        return 1 / self.variable_symbols
