"""Learning curves, recall by distance and loss by position: a line a cell, named at its end."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from mnemax.evaluation.report.drawing import NAMES, Drawing, chance_line, file_name, score_axis
from mnemax.evaluation.report.labels import Label, beside_ends, lines_of
from mnemax.evaluation.report.results import Sweep
from mnemax.evaluation.report.series import POINTS, Series, over_bins, over_steps
from mnemax.evaluation.report.style import Look, look, new_figure, tokens_axis

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BAND = "the band reaches from the lowest to the highest seed"


class Line(NamedTuple):
    """A cell's series."""

    label: str
    look: Look
    series: Series


def learning_curves(sweep: Sweep) -> Iterator[Drawing]:
    """Training and validation over steps."""
    records = [record for _, run in sweep.runs for record in run.records]
    measure = next((m for m in NAMES if any(r["split"] == "train" and r.get(m) is not None for r in records)), None)
    if measure is None:
        return
    last = max(record["step"] for record in records)
    figure = new_figure(_height(sweep))
    axes = figure.add_subplot(xlabel="step")
    lines = []
    for i, cell in enumerate(sweep.cells):
        finished = [run for run in cell.runs if run.state == "finished"]
        runs, label = finished or cell.runs, cell.label if finished else f"{cell.label} (unfinished)"
        if (train := over_steps(runs, "train", measure, max(1, last / POINTS))) is not None:
            lines.append(Line(label, look(i), train))
        if (validation := over_steps(runs, "validation", measure, 1)) is not None:
            axes.plot(validation.x, validation.mean, look(i).marker, color=look(i).color, mfc="none", ms=5.5, zorder=3)
    if not lines:
        return
    score_axis(axes, "training", measure)
    _draw(axes, lines, markers=False, top=None if measure == "accuracy" else _usual(lines))
    yield Drawing(
        "learning_curves",
        "Learning curves",
        f"Training {NAMES[measure]}, mean over a cell's finished seeds; {BAND}. Open markers: validation. "
        "Unfinished: no seed has come to its end; drawn as far as they went.",
        _ends(lines),
        "curves.csv",
        figure,
    )


def by_distance(sweep: Sweep, task: str) -> Iterator[Drawing]:
    """Recall against how many tokens back the answer stood."""
    title, xlabel = "recall against how far back", "distance back to what is recalled (tokens)"
    return _by_bins(sweep, task, "distance", "accuracy", title, xlabel)


def by_position(sweep: Sweep, task: str) -> Iterator[Drawing]:
    """Loss against how much context there was."""
    return _by_bins(sweep, task, "position", "loss", "loss by position in the context", "position in the context (tokens)")


def _by_bins(sweep: Sweep, task: str, over: str, measure: str, title: str, xlabel: str) -> Iterator[Drawing]:
    lines = _over_bins(sweep, task, f"by_{over}", measure)
    if not lines:
        return
    figure = new_figure(_height(sweep))
    axes = figure.add_subplot(xlabel=xlabel)
    score_axis(axes, task, measure)
    if measure == "accuracy" and (chance := sweep.chance(task)) is not None:
        chance_line(axes, chance, at=0.005)
    _draw(axes, lines, markers=True)
    yield Drawing(
        f"{over}_{file_name(task)}",
        f"{task}: {title}",
        f"Mean over seeds in the middle of each range of {over}s; {BAND}.",
        _ends(lines),
        f"by_{over}.csv",
        figure,
    )


def _over_bins(sweep: Sweep, task: str, bins: str, measure: str) -> list[Line]:
    found = [(cell.label, look(i), over_bins(cell, task, bins, measure)) for i, cell in enumerate(sweep.cells)]
    return [Line(label, style, series) for label, style, series in found if series is not None]


def _draw(axes: "Axes", lines: list[Line], *, markers: bool, top: float | None = None) -> None:
    """Means with their bands and labels, up to the top; with markers, on a logarithmic axis."""
    for _, style, series in lines:
        axes.fill_between(series.x, series.low, series.high, color=style.color, alpha=0.15, lw=0)
        axes.plot(series.x, series.mean, style.dashes, color=style.color, marker=style.marker if markers else "")
    if markers:
        tokens_axis(axes)
    else:
        axes.margins(x=0.02)
    least = min(series.low.min() for _, _, series in lines)
    if top is not None and top > least:
        axes.set_ylim(least - 0.05 * (top - least), top)
    high = axes.get_ylim()[1]
    beside_ends(axes, [Label(label, s.x[-1], min(s.mean[-1], high), style.color) for label, style, s in lines])


def _usual(lines: list[Line]) -> float:
    """A top for losses, above nine tenths of them: what an untrained or broken model loses would flatten all the rest."""
    import numpy as np

    return 1.05 * float(np.percentile(np.concatenate([line.series.high for line in lines]), 90))


def _height(sweep: Sweep) -> float:
    """Inches: as many as the labels need above one another."""
    rows = len(sweep.cells) * max((len(lines_of(cell.label)) for cell in sweep.cells), default=0)
    return max(4.6, 0.2 * rows + 0.8)


def _ends(lines: list[Line]) -> str:
    return "; ".join(f"{label}: {s.mean[0]:.3g} at {s.x[0]:g}, {s.mean[-1]:.3g} at {s.x[-1]:g}" for label, _, s in lines) + "."
