"""The report as one HTML file: figures inside, no script, nothing to fetch."""

import base64
from collections import Counter
from html import escape
from pathlib import Path
from string import Template

from mnemax.evaluation.report.drawing import Drawing
from mnemax.evaluation.report.numbers import numbers
from mnemax.evaluation.report.results import Problem, State, Sweep

TEMPLATE = Path(__file__).with_name("page.html")
UNFINISHED: dict[State, str] = {"running": "unfinished", "not started": "not started", "unreadable": "in an unreadable state"}


def page(sweep: Sweep, drawn: list[tuple[Drawing, str]]) -> str:
    """The page of a sweep and its figures, each with its SVG."""
    return Template(TEMPLATE.read_text(encoding="utf-8")).substitute(
        title=escape(sweep.title),
        description=f"<p>{escape(sweep.description)}</p>" if sweep.description else "",
        status=_status(sweep),
        problems=_problems(sweep),
        figures="\n".join(_figure(drawing, image) for drawing, image in drawn),
        numbers=numbers(sweep),
    )


def _status(sweep: Sweep) -> str:
    states = Counter(run.state for _, run in sweep.runs)
    seeds = len({run.seed for _, run in sweep.runs})
    parts = [
        f"{_count(len(sweep.cells), 'cell')}, {_count(seeds, 'seed')}",
        f"<b>{states['finished']} of {states.total()}</b> runs finished",
    ]
    if states["failed"]:
        parts.append(f'<b class="bad">{states["failed"]} failed</b>')
    parts += [f"<b>{states[state]}</b> {said}" for state, said in UNFINISHED.items() if states[state]]
    if sweep.problems:
        parts.append(f'<b class="bad">{_count(len(sweep.problems), "part")} unreadable</b>')
    return " · ".join(parts)


def _problems(sweep: Sweep) -> str:
    failed = [
        Problem(f"{cell.label}, seed {run.seed}", run.error or "No error was written.")
        for cell, run in sweep.runs
        if run.state == "failed"
    ]
    lists = _listed("Failed", failed) + _listed("Unreadable, and left out", sweep.problems)
    return f'<div class="problems">\n{lists}</div>' if lists else ""


def _listed(title: str, problems: list[Problem]) -> str:
    entries = "\n".join(f"<dt>{escape(where)}</dt><dd>{escape(said.strip())}</dd>" for where, said in problems)
    return f"<h3>{title}</h3>\n<dl>\n{entries}\n</dl>\n" if problems else ""


def _figure(drawing: Drawing, image: str) -> str:
    data = base64.b64encode(image.encode()).decode()
    files = ", ".join(f'<a href="{name}">{name}</a>' for name in (f"{drawing.name}.png", drawing.data))
    return f"""<section>
<h2>{escape(drawing.heading)}</h2>
<figure>
<div class="wide"><img src="data:image/svg+xml;base64,{data}" alt="{escape(f"{drawing.heading}. {drawing.summary}")}"></div>
<figcaption>{escape(drawing.caption)} <span class="files">Beside this page: {files}.</span></figcaption>
</figure>
</section>"""


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"
