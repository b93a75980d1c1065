"""A sweep: one experiment, many cells that differ in a few fields, several seeds of each."""

import itertools
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from mnemax.configs import load
from mnemax.configs.base import Config, PositiveInt
from mnemax.configs.schema import RunConfig
from mnemax.errors import UserError

type Overrides = dict[str, Any]


class MatchConfig(Config):
    """Makes cells equal in what they cost, so that only the idea differs."""

    equal: Literal["parameters", "state_bytes", "train_flops"]
    """state_bytes: of one row's decode state after data.sequence_length tokens; train_flops: of all steps."""
    by: str
    """The integer field that is solved for, e.g. model.width, model.stages[0].repeat or steps."""
    multiple_of: PositiveInt = 1
    to: str | PositiveInt | None = None
    """A cell's label, or a number; null: the first cell."""


class CellConfig(Config):
    """One point of a sweep."""

    label: Annotated[str, Field(min_length=1)]
    set: Overrides = Field(default_factory=dict)
    """Dotted fields and their values."""


class SweepConfig(Config):
    """A base experiment, cells, seeds, and what the results are measured on."""

    name: str
    title: str | None = None
    description: str | None = None
    base: str
    """A shipped experiment's name or a file."""
    set: Overrides = Field(default_factory=dict)
    """Dotted fields of every cell."""
    cells: tuple[CellConfig, ...] = ()
    axes: dict[str, Annotated[list[Any], Field(min_length=1)]] = Field(default_factory=dict)
    """A grid: dotted fields and their values; each cell is repeated at every point of it."""
    seeds: PositiveInt | Annotated[tuple[int, ...], Field(min_length=1)] = 1
    """How many (0, 1, ...), or which."""
    tasks: tuple[str, ...] = ()
    """What `mnemax eval` measures at a cell's end; empty: what the cell was trained on."""
    match: MatchConfig | None = None
    x: str | None = None
    """The field that the report draws accuracy against, beside bytes of state."""


@dataclass(frozen=True)
class Cell:
    """A cell with all that it sets, and what matching chose for it."""

    label: str
    overrides: Overrides
    chosen: Overrides

    @property
    def name(self) -> str:
        """The label as a folder's name."""
        return re.sub(r"[^\w.=+-]+", "-", self.label).strip("-.") or "cell"

    @property
    def arguments(self) -> list[str]:
        """As `mnemax train` takes them."""
        return [f"{field}={json.dumps(value)}" for field, value in {**self.overrides, **self.chosen}.items()]

    def run(self, base: str) -> RunConfig:
        """Its run.

        Raises:
            UserError: naming the cell and the field.
        """
        try:
            return load.load_run(base, [*self.arguments, f"name={self.name}"])
        except UserError as error:
            raise UserError(f"cell '{self.label}': {error}") from error


def load_sweep(source: str, overrides: list[str]) -> SweepConfig:
    """A sweep from a shipped ablation's name or a file; `overrides` are fields of the sweep (`seeds=1`) or, dotted, of every cell.

    Raises:
        UserError: it cannot be read, or a field is wrong.
    """
    shipped = load.shipped("ablations")
    path = load.SHIPPED / "ablations" / f"{source}.yaml" if source in shipped else Path(source)
    if not path.is_file():
        raise UserError(f"'{source}' is neither a file nor a shipped ablation; shipped: {', '.join(shipped) or 'none'}.")
    tree = {"name": path.stem, **load.read_mapping(path)}
    if isinstance(base := tree.get("base"), str) and (beside := path.parent / base).is_file():
        tree["base"] = str(beside)
    of_cells = {}
    for field, value in map(load.parse_override, overrides):
        (tree if field in SweepConfig.model_fields else of_cells)[field] = value
    if of_cells:
        given = tree.get("set")
        tree["set"] = {**given, **of_cells} if isinstance(given, dict) else of_cells
    return load.validate(SweepConfig, tree, str(path))


def cells(sweep: SweepConfig) -> list[Cell]:
    """Every cell, each a valid run, matched where that is asked.

    Raises:
        UserError: a cell's field is wrong, two cells are the same, or nothing matches.
    """
    found = list(_expand(sweep))
    for key, what in ((lambda c: c.name, "are called alike"), (lambda c: json.dumps(c.overrides, sort_keys=True), "set the same")):
        seen: dict[str, Cell] = {}
        for cell in found:
            if (other := seen.setdefault(key(cell), cell)) is not cell:
                raise UserError(f"{sweep.name}: the cells '{other.label}' and '{cell.label}' collide: they {what}.")
    if sweep.match is None:
        for cell in found:
            cell.run(sweep.base)
        return found
    return _matched(sweep, sweep.match, found)


def seeds(sweep: SweepConfig) -> tuple[int, ...]:
    """The seeds, one by one."""
    return tuple(range(sweep.seeds)) if isinstance(sweep.seeds, int) else sweep.seeds


def _expand(sweep: SweepConfig) -> Iterator[Cell]:
    for point in itertools.product(*sweep.axes.values()):
        on_grid = dict(zip(sweep.axes, point, strict=True))
        said = [f"{field.rpartition('.')[2]}={_short(value)}" for field, value in on_grid.items()]
        for cell in sweep.cells or (None,):
            label = ", ".join([*([cell.label] if cell else []), *said]) or sweep.name
            yield Cell(label, {**sweep.set, **(cell.set if cell else {}), **on_grid}, {})


def _short(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(str(v) for v in value.values())
    return str(value)


def _matched(sweep: SweepConfig, match: MatchConfig, found: list[Cell]) -> list[Cell]:
    if isinstance(match.to, int):
        reference, target = None, float(match.to)
    else:
        reference = next((cell for cell in found if match.to in (None, cell.label)), None)
        if reference is None:
            labels = ", ".join(cell.label for cell in found)
            raise UserError(f"{sweep.name}: match.to is '{match.to}', which is no cell's label; the labels: {labels}.")
        target = quantity(reference.run(sweep.base), match.equal)
    return [cell if cell is reference else _solve(cell, sweep.base, match, target) for cell in found]


def quantity(run: RunConfig, which: str) -> float:
    """What cells are matched in."""
    from mnemax.evaluation import accounting

    length = run.data.sequence_length
    match which:
        case "parameters":
            return accounting.parameters(run.model)
        case "state_bytes":
            return accounting.state_bytes(run.model, 1, length)
        case _:
            return accounting.train_flops(run.model, length) * run.steps * run.data.batch_size * length


def _solve(cell: Cell, base: str, match: MatchConfig, target: float) -> Cell:
    """The multiple that comes closest to the target; the quantity grows with the field."""

    def tried(n: int) -> Cell:
        return Cell(cell.label, cell.overrides, {match.by: n * match.multiple_of})

    @cache
    def at(n: int) -> float:
        return quantity(tried(n).run(base), match.equal)

    low, high = 1, 2
    while at(high) < target:
        low, high = high, 2 * high
        if high > 2**20 or at(high) == at(low):
            raise UserError(f"cell '{cell.label}': {match.equal} does not reach {target:,.0f} by {match.by} alone.")
    # Most quantities are nearly linear in the field, so a straight line hits at once; every other guess halves what is left.
    halve = False
    while high - low > 1:
        share = 0.5 if halve else (target - at(low)) / (at(high) - at(low))
        middle = min(max(low + int(share * (high - low)), low + 1), high - 1)
        low, high = (middle, high) if at(middle) < target else (low, middle)
        halve = not halve
    return tried(min((low, high), key=lambda n: abs(at(n) - target)))
