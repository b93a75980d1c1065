"""The numbers behind the figures, as CSV files."""

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from mnemax.evaluation.report.fields import differing, value_of
from mnemax.evaluation.report.results import MEASURES, Cell, Sweep
from mnemax.evaluation.report.statistics import estimate

COSTS = ("parameters", "context", "state_bytes", "bytes_a_token", "flops_a_token", "train_flops")


class Table(NamedTuple):
    """A CSV file; what is not known is left empty."""

    name: str
    columns: list[str]
    rows: list[list[Any]]

    def write(self, folder: Path) -> None:
        with (folder / self.name).open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([self.columns, *self.rows])


def tables(sweep: Sweep) -> Iterator[Table]:
    """All that have rows: a summary of the cells, then what the runs say one by one."""
    runs = [([cell.name, run.seed], run) for cell, run in sweep.runs]
    tasks = [([*key, name], task) for key, run in runs for name, task in run.tasks.items()]
    by_run = ["cell", "seed"]
    by_task = [*by_run, "task"]
    found = (
        _summary(sweep),
        Table("runs.csv", [*by_run, "state", "seconds", "error"], [[*key, run.state, run.seconds, run.error] for key, run in runs]),
        Table(
            "scores.csv",
            [*by_task, "measure", "value", "chance"],
            [[*key, measure, value, task.chance] for key, task in tasks for measure, value in task.measures().items()],
        ),
        Table(
            "curves.csv",
            [*by_run, "split", "step", *MEASURES],
            [[*key, r["split"], r["step"], *(r.get(m) for m in MEASURES)] for key, run in runs for r in run.records],
        ),
        Table(
            "by_distance.csv",
            [*by_task, "from", "to", "accuracy"],
            [[*key, b.first, b.last, b.accuracy] for key, task in tasks for b in task.by_distance],
        ),
        Table(
            "needles.csv",
            [*by_task, "length", "depth", "accuracy"],
            [
                [*key, length, depth, value]
                for key, task in tasks
                if task.grid is not None
                for length, row in zip(task.grid.lengths, task.grid.accuracy, strict=True)
                for depth, value in zip(task.grid.depths, row, strict=True)
            ],
        ),
        Table(
            "by_position.csv",
            [*by_task, "from", "to", "loss"],
            [[*key, b.first, b.last, b.loss] for key, task in tasks for b in task.by_position],
        ),
    )
    yield from (table for table in found if table.rows)


def _summary(sweep: Sweep) -> Table:
    fields = differing(sweep.cells)
    if sweep.x is not None and sweep.x not in fields:
        fields.append(sweep.x)
    measures = [(task, measure) for task, names in sweep.tasks().items() for measure in names]
    scores = [f"{task} {measure}{end}" for task, measure in measures for end in (" mean", " half of 95% interval", " seeds")]

    def row(cell: Cell) -> list[Any]:
        estimates = [estimate(cell.scores(task, measure)) or (None, None, 0) for task, measure in measures]
        finished = sum(run.state == "finished" for run in cell.runs)
        return [
            *(cell.name, cell.label, len(cell.runs), finished),
            *(value_of(cell, field) for field in fields),
            *(number for found in estimates for number in found),
            *(getattr(cell.model, cost) for cost in COSTS),
            cell.seconds,
        ]

    columns = ["cell", "label", "runs", "finished", *fields, *scores, *COSTS, "seconds"]
    return Table("summary.csv", columns, [row(cell) for cell in sweep.cells])
