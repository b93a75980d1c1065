"""Synthetic tasks: sources whose examples are made as they are read, each a function of a seed and its number.

A kind is one file of `sources/`. It says where the model is asked for something, what the answer is, and how far back in the
context it was told: loss and accuracy count at those positions alone.
"""

import threading
from typing import TYPE_CHECKING, Literal, NamedTuple, Self, override

import numpy as np
from jaxtyping import Float, Integer

from mnemax.configs.base import PositiveInt
from mnemax.data.sources import SourceConfig

UNLIMITED = 2**31 - 1  # examples of a task whose every example is new; as many as grain can shuffle
SPLITS = {"train": 0, "validation": 1, "test": 2}


class Example(NamedTuple):
    """One example of a task, all of one length.

    Attributes:
        inputs: what the model reads.
        targets: what it should say at each position: the next token, or whatever the task asks for there.
        asked: 1 where it is asked, else 0; the loss and the accuracy are over these.
        distance: where asked, how many tokens before this one the latest of what the answer follows from lies; else 0.
    """

    inputs: Integer[np.ndarray, " n"]
    targets: Integer[np.ndarray, " n"]
    asked: Float[np.ndarray, " n"]
    distance: Integer[np.ndarray, " n"]


class TaskConfig(SourceConfig):
    """The base of every synthetic task."""

    examples: PositiveInt | None = None
    """Examples to train on, seen again every epoch; null: every example is new."""
    split: Literal["train", "validation", "test"] = "train"
    """Splits never share a random seed."""

    def example(self, rng: np.random.Generator) -> Example:
        """One example, all of whose randomness is drawn from `rng`."""
        raise NotImplementedError

    if TYPE_CHECKING:  # At run time most kinds have a field of this name, which must not shadow anything.

        @property
        def length(self) -> int:
            """Tokens of the longest example."""
            ...

    @property
    def symbols(self) -> int:
        """Size of its vocabulary: every token is below this."""
        raise NotImplementedError

    @property
    def chance(self) -> float:
        """Accuracy of one who knows the task's form and nothing of the context."""
        raise NotImplementedError

    def number(self, number: int, seed: int = 0) -> Example:
        """Example `number` of this split, always the same one."""
        return self.example(self.rng(number, seed))

    def several(self, numbers: Integer[np.ndarray, " B"], seed: int) -> Example | None:
        """The examples of these numbers, stacked [B, length], from a kind that makes many at once sooner; from others None."""
        return None

    def rng(self, number: int, seed: int = 0) -> np.random.Generator:
        """Where the randomness of that example begins; valid until this thread asks for the next one."""
        return _local.restarted(self.stream(seed), number)

    def stream(self, seed: int) -> int:
        """A number for each split of each seed."""
        return len(SPLITS) * (seed % 2**32) + SPLITS[self.split]

    @override
    def held_out(self) -> Self:
        return self.model_copy(update={"split": "validation", "examples": None})


class _Generators(threading.local):
    """A generator a thread. Philox's randomness is a function of its key, and setting it costs a tenth of making a generator."""

    def __init__(self) -> None:
        self.bits = np.random.Philox(key=0)
        self.generator = np.random.Generator(self.bits)
        self.state = self.bits.state

    def restarted(self, *key: int) -> np.random.Generator:
        """The generator at the beginning of the stream of a key, two integers."""
        self.state["state"]["key"][:] = key
        self.bits.state = self.state
        return self.generator


_local = _Generators()
