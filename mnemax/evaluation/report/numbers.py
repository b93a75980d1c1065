"""The table of the page: what differs between the cells, what they reached, and what they cost."""

import itertools
import math
from collections.abc import Iterator
from html import escape
from typing import Any, NamedTuple

from mnemax.evaluation.report.drawing import NAMES
from mnemax.evaluation.report.fields import differing, short_names, value_of
from mnemax.evaluation.report.results import SUBSETS, Sweep
from mnemax.evaluation.report.statistics import Estimate, estimate
from mnemax.evaluation.report.style import INK, Look, engineering, look


class Column(NamedTuple):
    """Its group, its head and what stands below, and the HTML of each cell's value."""

    group: str
    head: str
    below: str
    values: list[str]


def numbers(sweep: Sweep) -> str:
    """The section of the page."""
    groups = {name: list(columns) for name, columns in itertools.groupby(columns_of(sweep), key=lambda column: column.group)}
    head = "".join(f'<th colspan="{len(columns)}"{_edge(0, name)}>{escape(name)}</th>' for name, columns in groups.items())
    placed = [(column, _edge(i, name)) for name, columns in groups.items() for i, column in enumerate(columns)]
    names = "".join(f'<th scope="col"{edge}>{escape(c.head)}<small>{escape(c.below)}</small></th>' for c, edge in placed)
    rows = ["".join(f"<td{edge}>{column.values[i]}</td>" for column, edge in placed) for i in range(len(sweep.cells))]
    body = "\n".join(f"<tr>{row}</tr>" for row in rows)
    return f"""<section class="numbers">
<h2>Numbers</h2>
<p class="note">Mean over seeds ± half of the 95% confidence interval (Student t); one seed gives no interval. Only the fields in
which the cells differ are shown. <span class="files">Beside this page: <a href="summary.csv">summary.csv</a>,
<a href="runs.csv">runs.csv</a>.</span></p>
<div class="wide"><table>
<thead><tr class="group">{head}</tr>
<tr>{names}</tr></thead>
<tbody>
{body}
</tbody>
</table></div>
</section>"""


def columns_of(sweep: Sweep) -> Iterator[Column]:
    """All columns, those of a group together."""
    cells = sweep.cells
    models = [cell.model for cell in cells]
    yield Column("", "cell", "", [f"{_glyph(look(i))} {escape(cell.label)}" for i, cell in enumerate(cells)])
    finished = [f"{sum(run.state == 'finished' for run in cell.runs)} of {len(cell.runs)}" for cell in cells]
    yield Column("", "seeds", "finished", finished)
    chosen = {field for cell in cells for field in cell.chosen}
    for field, short in short_names(differing(cells)).items():
        values = [_value(value_of(cell, field)) for cell in cells]
        yield Column("what differs", short, "chosen to match" if field in chosen else "", values)
    for task, measures in sweep.tasks().items():
        for measure in (measures[0], *(measure for measure in measures[1:] if measure in SUBSETS)):
            values = [_estimate(estimate(cell.scores(task, measure)), len(cell.runs)) for cell in cells]
            yield Column("scores", task, NAMES.get(measure, measure), values)
    yield Column("costs", "parameters", "", [engineering(model.parameters) for model in models])
    yield Column("costs", "state", "bytes a sequence", [engineering(model.state_bytes, "B") for model in models])
    yield Column("costs", "token", "bytes written", [engineering(model.bytes_a_token, "B") for model in models])
    yield Column("costs", "FLOPs", "a token", [engineering(model.flops_a_token) for model in models])
    yield Column("costs", "FLOPs", "of training", [engineering(model.train_flops) for model in models])
    yield Column("costs", "seconds", "a run", ["–" if cell.seconds is None else f"{cell.seconds:,.0f}" for cell in cells])


def _estimate(found: Estimate | None, runs: int) -> str:
    """With the number of seeds where it is not that of the cell's runs."""
    if found is None:
        return "–"
    if found.half is None:
        return f"{found.mean:.3f}<small>1 seed: no interval</small>"
    return f"{found.mean:.3f} ± {found.half:.3f}" + (f"<small>{found.seeds} seeds</small>" if found.seeds != runs else "")


def _value(value: Any) -> str:
    match value:
        case None:
            return "–"
        case bool():
            return "yes" if value else "no"
        case float() if math.isfinite(value):
            return f"{value:g}"
        case int():
            return f"{value:,}"
        case _:
            return escape(str(value))


def _glyph(drawn: Look) -> str:
    color = "currentColor" if drawn.color == INK else drawn.color
    return f'<span style="color:{color}">{drawn.glyph}</span>'


def _edge(place: int, group: str) -> str:
    """A rule before each group but the first, which has no name."""
    return ' class="first"' if place == 0 and group else ""
