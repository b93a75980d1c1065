"""Heat maps of needles: recall by depth and length, a panel a cell, one scale of colours for all."""

import math
import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING

from mnemax.evaluation.report.drawing import Drawing, file_name
from mnemax.evaluation.report.results import Cell, Sweep
from mnemax.evaluation.report.style import new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import QuadMesh
    from numpy import ndarray

COLUMNS = 4
WRITTEN = 7
"""Values are written into grids of at most so many lengths and depths."""


def heat_maps(sweep: Sweep, task: str) -> Iterator[Drawing]:
    """Accuracy over depth x length, of the cells that have a grid."""
    grids = [(cell, grid) for cell in sweep.cells if (grid := mean_grid(cell, task))]
    if not grids:
        return
    lengths = sorted({length for _, grid in grids for length, _ in grid})
    depths = sorted({depth for _, grid in grids for _, depth in grid})
    rows = math.ceil(len(grids) / COLUMNS)
    figure = new_figure(2.5 * rows + 0.4)
    panels = list(figure.subplots(rows, COLUMNS, squeeze=False).flat)
    for axes in panels[len(grids) :]:
        axes.remove()
    mesh = None
    for i, (axes, (cell, grid)) in enumerate(zip(panels, grids, strict=False)):
        mesh = _panel(axes, _array(grid, lengths, depths), lengths, depths)
        axes.set_title("\n".join(textwrap.wrap(cell.label, 26)))
        if i % COLUMNS == 0:
            axes.set_ylabel("depth of the needle")
        if i + COLUMNS >= len(grids):
            axes.set_xlabel("length (tokens)")
    assert mesh is not None
    figure.colorbar(mesh, ax=panels[: len(grids)], label="accuracy (%)", aspect=12 * rows, fraction=0.03)
    means = {cell.label: sum(grid.values()) / len(grid) for cell, grid in grids}
    yield Drawing(
        f"needles_{file_name(task)}",
        f"{task}: recall by depth and length",
        "Mean over seeds, in per cent; depth 0% is the start of the context, furthest from the question.",
        "Mean of the grid: " + "; ".join(f"{label} {mean:.2f}" for label, mean in means.items()) + ".",
        "needles.csv",
        figure,
    )


def mean_grid(cell: Cell, task: str) -> dict[tuple[int, float], float]:
    """(length, depth) to accuracy over the seeds that have it."""
    gathered: dict[tuple[int, float], list[float]] = {}
    for run in cell.runs:
        if task in run.tasks and (grid := run.tasks[task].grid) is not None:
            for length, row in zip(grid.lengths, grid.accuracy, strict=True):
                for depth, value in zip(grid.depths, row, strict=True):
                    if value is not None and math.isfinite(value):
                        gathered.setdefault((length, depth), []).append(value)
    return {place: sum(values) / len(values) for place, values in gathered.items()}


def _array(grid: dict[tuple[int, float], float], lengths: list[int], depths: list[float]) -> "ndarray":
    import numpy as np

    return 100 * np.array([[grid.get((length, depth), np.nan) for length in lengths] for depth in depths])


def _panel(axes: "Axes", values: "ndarray", lengths: list[int], depths: list[float]) -> "QuadMesh":
    mesh = axes.pcolormesh(values, cmap="cividis", vmin=0, vmax=100, edgecolors="face", linewidth=0.4)
    axes.invert_yaxis()
    axes.grid(False)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, labelsize=8)
    axes.set_xticks([i + 0.5 for i in range(len(lengths))], [f"{length:,}" for length in lengths])
    axes.set_yticks([i + 0.5 for i in range(len(depths))], [f"{depth:.0%}" for depth in depths])
    if max(values.shape) <= WRITTEN:
        for (row, column), value in _written(values):
            color = "black" if value > 55 else "white"
            axes.text(column + 0.5, row + 0.5, f"{value:.0f}", ha="center", va="center", size=8, color=color)
    return mesh


def _written(values: "ndarray") -> Iterator[tuple[tuple[int, int], float]]:
    for row in range(values.shape[0]):
        for column in range(values.shape[1]):
            if math.isfinite(values[row, column]):
                yield (row, column), values[row, column]
