"""Reads a sweep's folder. What cannot be read is listed and left out, so that the rest is still seen."""

import json
import math
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field, TypeAdapter, ValidationError

from mnemax.errors import UserError
from mnemax.evaluation.report.results import SUBSETS, Cell, Model, Part, Problem, Run, State, Sweep, Task, Tokens


class _Entry(Part):
    name: str
    label: str
    seed: int
    folder: str
    overrides: dict[str, Any] = Field(default_factory=dict)
    chosen: dict[str, Any] = Field(default_factory=dict)


class _Description(Part):
    name: str | None = None
    title: str | None = None
    description: str | None = None
    x: str | None = None


class _State(Part):
    state: Literal["running", "finished", "failed"]
    error: str | None = None
    seconds: float | None = None


def read(folder: Path) -> Sweep:
    """The sweep of a folder.

    Raises:
        UserError: the folder has no readable list of cells.
    """
    cells_file = folder / "cells.json"
    if not cells_file.is_file():
        raise UserError(f"{folder} is no sweep's folder, which 'mnemax sweep' makes: it has no cells.json.")
    try:
        entries = TypeAdapter(list[_Entry]).validate_json(cells_file.read_bytes())
    except (OSError, ValidationError) as error:
        raise UserError(f"{cells_file} is no list of a sweep's cells: {_sentence(error)}.") from error
    reader = _Reader(folder)
    about = reader.part(_Description, reader.yaml(folder / "sweep.yaml"), "sweep.yaml") or _Description()
    cells: dict[str, Cell] = {}
    for entry in entries:
        cell = cells.setdefault(entry.name, Cell(entry.name, entry.label, entry.overrides, entry.chosen, []))
        cell.runs.append(reader.run(folder / entry.folder, entry.seed))
    name = about.name or folder.resolve().name
    return Sweep(name, about.title or name, about.description, about.x, list(cells.values()), reader.problems)


class _Reader:
    """Reads files, and notes what is wrong with them."""

    def __init__(self, root: Path):
        self.root = root
        self.problems: list[Problem] = []

    def run(self, folder: Path, seed: int) -> Run:
        status = _State(state="running")
        state: State = "not started"
        if (folder / "state.json").is_file():
            read_status = self.part(_State, self.json(folder / "state.json"), folder / "state.json")
            status, state = (read_status, read_status.state) if read_status else (status, "unreadable")
        model, tasks = self.evaluation(folder / "evaluation.json")
        return Run(
            seed=seed,
            state=state,
            error=status.error,
            seconds=status.seconds,
            config=self.yaml(folder / "config.yaml") if (folder / "config.yaml").is_file() else {},
            records=self.metrics(folder / "metrics.jsonl", state),
            model=model,
            tasks=tasks,
        )

    def evaluation(self, path: Path) -> tuple[Model, dict[str, Task]]:
        tree = self.json(path) if path.is_file() else {}
        if not isinstance(tree, dict) or not isinstance(tree.get("tasks", {}), dict):
            self.note(path, "no mapping of 'model' and 'tasks'")
            return Model(), {}
        model = self.part(Model, tree.get("model", {}), path, "model") or Model()
        read_tasks = {name: self.part(Task, task, path, f"tasks.{name}") for name, task in tree.get("tasks", {}).items()}
        return model, {name: self.finite(task, path, name) for name, task in read_tasks.items() if task}

    def finite(self, task: Task, path: Path, name: str) -> Task:
        """The task without what is not a number."""
        lost = [measure for measure, value in task.measures().items() if not math.isfinite(value)]
        for measure in lost:
            self.note(path, f"tasks.{name}: {measure} is no finite number")
        return task.model_copy(update={SUBSETS.get(measure, measure): Tokens() if measure in SUBSETS else None for measure in lost})

    def metrics(self, path: Path, state: State) -> list[dict[str, Any]]:
        """The records up to the first that cannot be read; a run that goes on may be writing its last."""
        from mnemax.training.metrics import read

        try:
            records = read(path)
            lines = len(path.read_text().splitlines()) if path.is_file() else 0
        except (OSError, UnicodeDecodeError) as error:
            self.note(path, _sentence(error))
            return []
        if lines - len(records) > (state != "finished"):
            self.note(path, f"line {len(records) + 1} of {lines} is no JSON; its curves end there")
        good = [record for record in records if _is_record(record)]
        if len(good) < len(records):
            self.note(path, f"{len(records) - len(good)} lines have no split and step")
        return good

    def part[P: Part](self, kind: type[P], tree: Any, path: Path | str, within: str = "") -> P | None:
        try:
            return kind.model_validate(tree)
        except ValidationError as error:
            self.note(path, ": ".join(filter(None, (within, _sentence(error)))))
            return None

    def json(self, path: Path) -> Any:
        try:
            return json.loads(path.read_bytes())
        except (OSError, ValueError) as error:
            self.note(path, _sentence(error))
            return {}

    def yaml(self, path: Path) -> dict[str, Any]:
        try:
            tree = yaml.safe_load(path.read_bytes())
        except (OSError, ValueError, yaml.YAMLError) as error:
            self.note(path, _sentence(error))
            return {}
        if not isinstance(tree, dict):
            self.note(path, "no mapping of fields")
            return {}
        return tree

    def note(self, path: Path | str, said: str) -> None:
        where = str(path.relative_to(self.root)) if isinstance(path, Path) else path
        self.problems.append(Problem(where, said))


def _is_record(record: Any) -> bool:
    return isinstance(record, dict) and isinstance(record.get("step"), int) and isinstance(record.get("split"), str)


def _sentence(error: Exception) -> str:
    match error:
        case ValidationError():
            first = error.errors()[0]
            return ": ".join(filter(None, (".".join(map(str, first["loc"])), first["msg"])))
        case json.JSONDecodeError():
            return f"no JSON: {error}"
        case yaml.MarkedYAMLError():
            return f"no YAML: {error.problem}" + (f": line {error.problem_mark.line + 1}" if error.problem_mark else "")
        case OSError():
            return f"cannot be read: {error.strerror or error}"
        case _:
            return " ".join(str(error).split())
