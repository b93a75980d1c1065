"""All figures in the order of the page, most telling first."""

from collections.abc import Iterator

from mnemax.evaluation.report.drawing import Drawing
from mnemax.evaluation.report.lines import by_distance, by_position, learning_curves
from mnemax.evaluation.report.needles import heat_maps
from mnemax.evaluation.report.results import Sweep
from mnemax.evaluation.report.scatter import against_field, quality


def drawings(sweep: Sweep) -> Iterator[Drawing]:
    """Every figure that some cell has data for."""
    judged = {task: measures[0] for task, measures in sweep.tasks().items()}
    for task, measure in judged.items():
        yield from quality(sweep, task, measure)
    if sweep.x is not None:
        for task, measure in judged.items():
            yield from against_field(sweep, task, measure, sweep.x)
    yield from learning_curves(sweep)
    done = dict.fromkeys(task for _, run in sweep.runs for task in run.tasks)
    for figure in (by_distance, heat_maps, by_position):
        for task in done:
            yield from figure(sweep, task)
