"""What a sweep found: its cells, their runs, and each run's numbers. `reading` makes them of a folder."""

from typing import Any, Literal, NamedTuple, Self

from pydantic import BaseModel, Field, model_validator

type State = Literal["finished", "running", "failed", "not started", "unreadable"]

MEASURES = ("accuracy", "bits_per_byte", "loss")
"""What a task is judged by: the first of these that it has."""
SUBSETS = {"loss on repeated bigrams": "repeated_bigrams", "loss elsewhere": "other"}
"""Losses on a part of the tokens, and the fields that hold them."""


class Part(BaseModel, frozen=True):
    """A part of a file; what it holds beside the fields is somebody else's."""


class Bin(Part):
    """A range of distances or positions in tokens, both ends included."""

    first: int = Field(alias="from")
    last: int = Field(alias="to")
    accuracy: float | None = None
    loss: float | None = None


class Grid(Part):
    """Needles: `accuracy[length][depth]`, depths as fractions of the context from its start."""

    lengths: list[int]
    depths: list[float]
    accuracy: list[list[float | None]]

    @model_validator(mode="after")
    def _rectangular(self) -> Self:
        if [len(row) for row in self.accuracy] != [len(self.depths)] * len(self.lengths):
            raise ValueError(f"accuracy is not {len(self.lengths)} lengths x {len(self.depths)} depths")
        return self


class Tokens(Part):
    """A subset of the tokens."""

    loss: float | None = None


class Task(Part):
    """What one run reached on one task; losses are nats a token."""

    accuracy: float | None = None
    bits_per_byte: float | None = None
    loss: float | None = None
    chance: float | None = None
    by_distance: list[Bin] = []
    by_position: list[Bin] = []
    grid: Grid | None = None
    repeated_bigrams: Tokens = Tokens()
    other: Tokens = Tokens()

    def measures(self) -> dict[str, float]:
        """The numbers that stand for the whole task, the one it is judged by first."""
        found = {name: getattr(self, name) for name in MEASURES}
        found |= dict(zip(SUBSETS, (self.repeated_bigrams.loss, self.other.loss), strict=True))
        return {name: value for name, value in found.items() if value is not None}


class Model(Part):
    """What a model costs: FLOPs, and bytes for one row after `context` tokens."""

    parameters: int | None = None
    state_bytes: int | None = None
    context: int | None = None
    bytes_a_token: float | None = None
    flops_a_token: float | None = None
    train_flops: float | None = None


class Run(NamedTuple):
    """One seed of a cell."""

    seed: int
    state: State
    error: str | None
    seconds: float | None
    config: dict[str, Any]
    records: list[dict[str, Any]]
    model: Model
    tasks: dict[str, Task]


class Cell(NamedTuple):
    """One setting of a sweep, over its seeds."""

    name: str
    label: str
    overrides: dict[str, Any]
    chosen: dict[str, Any]
    runs: list[Run]

    @property
    def model(self) -> Model:
        """The costs, which all seeds share."""
        return next((run.model for run in self.runs if run.model != Model()), Model())

    @property
    def seconds(self) -> float | None:
        """Mean over the finished seeds."""
        found = [run.seconds for run in self.runs if run.state == "finished" and run.seconds is not None]
        return sum(found) / len(found) if found else None

    def scores(self, task: str, measure: str) -> list[float]:
        """The seeds' values, of those that have one."""
        found = [run.tasks[task].measures().get(measure) for run in self.runs if task in run.tasks]
        return [value for value in found if value is not None]


class Problem(NamedTuple):
    """A file, or a part of one, that could not be read."""

    where: str
    said: str


class Sweep(NamedTuple):
    """A sweep as far as it has come."""

    name: str
    title: str
    description: str | None
    x: str | None
    cells: list[Cell]
    problems: list[Problem]

    @property
    def runs(self) -> list[tuple[Cell, Run]]:
        return [(cell, run) for cell in self.cells for run in cell.runs]

    def tasks(self) -> dict[str, list[str]]:
        """Every task that some run has done, with its measures; the first is the one it is judged by."""
        found: dict[str, dict[str, None]] = {}
        for _, run in self.runs:
            for name, task in run.tasks.items():
                found.setdefault(name, {}).update(dict.fromkeys(task.measures()))
        order = [*MEASURES, *SUBSETS]
        return {name: sorted(measures, key=order.index) for name, measures in found.items() if measures}

    def chance(self, task: str) -> float | None:
        """The accuracy of guessing, where a run says it."""
        return next(
            (run.tasks[task].chance for _, run in self.runs if task in run.tasks and run.tasks[task].chance is not None), None
        )
