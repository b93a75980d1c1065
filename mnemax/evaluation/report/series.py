"""What the lines of the figures are made of: a quantity over steps, distances or positions, for each cell over its seeds."""

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from numpy import ndarray

    from mnemax.evaluation.report.results import Bin, Cell, Run

POINTS = 150
"""Of a learning curve; the steps between two are averaged."""


class Series(NamedTuple):
    """Mean over the seeds with the lowest and highest of them, at rising x."""

    x: "ndarray"
    mean: "ndarray"
    low: "ndarray"
    high: "ndarray"


def over_seeds(curves: Iterable[dict[float, float]]) -> Series | None:
    """One series of the seeds' curves; where a seed has no value the others speak. None without any value."""
    import numpy as np

    gathered: dict[float, list[float]] = {}
    for curve in curves:
        for x, y in curve.items():
            gathered.setdefault(x, []).append(y)
    if not gathered:
        return None
    xs = sorted(gathered)
    mean, low, high = (np.array([reduce(gathered[x]) for x in xs]) for reduce in (np.mean, np.min, np.max))
    return Series(np.array(xs, float), mean, low, high)


def over_steps(runs: Iterable["Run"], split: str, measure: str, width: float) -> Series | None:
    """A measure of the metrics, averaged over bins of `width` steps."""
    return over_seeds(_binned(run, split, measure, width) for run in runs)


def over_bins(cell: "Cell", task: str, bins: str, measure: str) -> Series | None:
    """A measure over the middles of a task's bins (`by_distance`, `by_position`), in tokens; 0 as 1/2, for logarithmic axes."""

    def curve(found: "list[Bin]") -> dict[float, float]:
        values = {max((b.first + b.last) / 2, 0.5): getattr(b, measure) for b in found}
        return {x: y for x, y in values.items() if y is not None and math.isfinite(y)}

    return over_seeds(curve(getattr(run.tasks[task], bins)) for run in cell.runs if task in run.tasks)


def _binned(run: "Run", split: str, measure: str, width: float) -> dict[float, float]:
    gathered: dict[int, list[tuple[int, float]]] = {}
    for record in run.records:
        value = record.get(measure)
        if record["split"] == split and isinstance(value, int | float) and math.isfinite(value):
            gathered.setdefault(math.ceil(record["step"] / width), []).append((record["step"], value))
    # Seeds that log at the same steps have the same bins, hence the same x.
    return {sum(s for s, _ in part) / len(part): sum(v for _, v in part) / len(part) for part in gathered.values()}
