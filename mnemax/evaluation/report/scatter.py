"""A task's score against what a cell costs, or against a field it was set to."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from mnemax.evaluation.report.drawing import NAMES, Drawing, chance_line, file_name, score_axis
from mnemax.evaluation.report.fields import short_names, value_of
from mnemax.evaluation.report.labels import Label, beside_points, settle
from mnemax.evaluation.report.results import Sweep
from mnemax.evaluation.report.statistics import Estimate, estimate, pareto
from mnemax.evaluation.report.style import INK, Look, bytes_axis, engineering, look, new_figure, values_axis

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INTERVAL = "Bars: 95% confidence interval over seeds (Student t)."


class Point(NamedTuple):
    """A cell in a plane."""

    label: str
    look: Look
    x: float
    score: Estimate


def quality(sweep: Sweep, task: str, measure: str) -> Iterator[Drawing]:
    """Against bytes of decode state, with the Pareto front."""
    # No state at all has no logarithm; it is drawn as one byte.
    sizes = {cell.name: None if (size := cell.model.state_bytes) is None else max(size, 1) for cell in sweep.cells}
    points = _points(sweep, sizes, task, measure)
    if not points:
        return
    contexts = sorted({cell.model.context for cell in sweep.cells if cell.model.context is not None})
    of = f", one sequence of {' or '.join(f'{n:,}' for n in contexts)} tokens" if contexts else ""
    front = pareto([point.x for point in points], [point.score.mean * (1 if measure == "accuracy" else -1) for point in points])
    figure = new_figure(5.4)
    axes = figure.add_subplot(xlabel=f"bytes of decode state{of}")
    score_axis(axes, task, measure)
    chance = sweep.chance(task) if measure == "accuracy" else None
    _scatter(axes, points, measure, chance, front, stepped=True)
    yield Drawing(
        f"quality_{file_name(task)}",
        f"{task}: quality against bytes of decode state",
        f"Filled, bold and on the stepped line: the Pareto front, which no other cell beats with as few bytes. {INTERVAL}",
        _said(points, "B"),
        "summary.csv",
        figure,
    )


def against_field(sweep: Sweep, task: str, measure: str, field: str) -> Iterator[Drawing]:
    """Against a field of the configuration, of the cells where it is a number."""
    values = {cell.name: value_of(cell, field) for cell in sweep.cells}
    numbers = {name: value if isinstance(value, int | float) else None for name, value in values.items()}
    points = _points(sweep, numbers, task, measure)
    if not points:
        return
    name = short_names([field])[field]
    figure = new_figure(4.6)
    axes = figure.add_subplot(xlabel=name)
    score_axis(axes, task, measure)
    _scatter(axes, points, measure, sweep.chance(task) if measure == "accuracy" else None, range(len(points)), stepped=False)
    without = [cell.label for cell in sweep.cells if numbers[cell.name] is None]
    yield Drawing(
        f"field_{file_name(task)}",
        f"{task}: {NAMES[measure]} against {name}",
        INTERVAL + (f" Without such a number and hence not shown: {', '.join(without)}." if without else ""),
        _said(points, ""),
        "summary.csv",
        figure,
    )


def _points(sweep: Sweep, xs: Mapping[str, float | None], task: str, measure: str) -> list[Point]:
    found = []
    for i, cell in enumerate(sweep.cells):
        x, score = xs[cell.name], estimate(cell.scores(task, measure))
        if x is not None and score is not None:
            found.append(Point(cell.label, look(i), x, score))
    return found


def _scatter(
    axes: "Axes", points: list[Point], measure: str, chance: float | None, filled: Sequence[int], *, stepped: bool
) -> None:
    """Points with bars and labels; stepped: over bytes, and with steps through the filled ones."""
    from matplotlib.path import Path

    for i, (_, style, x, score) in enumerate(points):
        half = score.half or 0.0
        low, high = (score.mean, 1 - score.mean) if measure == "accuracy" else (half, half)  # an accuracy stays within 0 and 1
        reach = [[min(half, low)], [min(half, high)]]
        fill = style.color if i in filled else "none"
        axes.errorbar(
            x, score.mean, reach, fmt=style.marker, color=style.color, mfc=fill, ms=8, mew=1.6, elinewidth=1.2, capsize=3, zorder=3
        )
    axes.margins(x=0.12, y=0.12)
    steps = []
    if stepped:
        bytes_axis(axes)
        steps = _steps(axes, points, filled)
        axes.plot(*zip(*steps, strict=True), color=INK, lw=1, alpha=0.55, zorder=2)
    else:
        values_axis(axes, [point.x for point in points])
    if chance is not None:
        chance_line(axes, chance, at=0.995)
    settle(axes)
    to_pixels = axes.transData.transform
    bars = [
        Path(to_pixels([(x, score.mean - (score.half or 0)), (x, score.mean + (score.half or 0))])) for _, _, x, score in points
    ]
    lines = [Path(to_pixels([a, b])) for a, b in pairwise(steps)] + bars
    labels = [
        Label(point.label, point.x, point.score.mean, point.look.color, "bold" if stepped and i in filled else "normal")
        for i, point in enumerate(points)
    ]
    beside_points(axes, labels, [text.get_window_extent() for text in axes.texts], lines)


def _steps(axes: "Axes", points: list[Point], front: Sequence[int]) -> list[tuple[float, float]]:
    """The best score that each number of bytes buys, to the right rim."""
    steps: list[tuple[float, float]] = []
    for i in front:
        x, y = points[i].x, points[i].score.mean
        steps += [(x, steps[-1][1]), (x, y)] if steps else [(x, y)]
    right = axes.get_xlim()[1]
    axes.set_xlim(right=right)
    return [*steps, (right, steps[-1][1])]


def _said(points: list[Point], unit: str) -> str:
    return "; ".join(f"{p.label}: {p.score.mean:.3f} at {engineering(p.x, unit)}" for p in points) + "."
