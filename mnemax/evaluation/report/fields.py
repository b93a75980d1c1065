"""The fields in which the cells of a sweep differ, and each cell's value of them."""

import re
from typing import Any

from mnemax.evaluation.report.results import Cell


def differing(cells: list[Cell]) -> list[str]:
    """Dotted fields that some cell overrides or has had chosen for it, and that are not the same in all."""
    named = dict.fromkeys(field for cell in cells for field in _set(cell))
    return [field for field in named if len({repr(value_of(cell, field)) for cell in cells}) > 1]


def value_of(cell: Cell, field: str) -> Any:
    """What the cell sets, or what its resolved configuration has; None where there is no such field."""
    own = _set(cell)
    if field in own:
        return own[field]
    return next((value for run in cell.runs if (value := _look_up(run.config, _parts(field))) is not None), None)


def short_names(fields: list[str]) -> dict[str, str]:
    """The last parts of each dotted field, two at least, and as many as tell it from the others."""

    def short(field: str) -> str:
        parts = field.split(".")
        ends = [".".join(parts[-n:]) for n in range(min(2, len(parts)), len(parts) + 1)]
        return next(end for end in ends if end == field or sum(f"{'.'}{other}".endswith(f".{end}") for other in fields) == 1)

    return {field: short(field) for field in fields}


def _set(cell: Cell) -> dict[str, Any]:
    return _flat(cell.overrides) | _flat(cell.chosen)


def _flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat = {}
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            flat.update(_flat(value, f"{prefix}{key}."))
        else:
            flat[prefix + key] = value
    return flat


def _parts(field: str) -> list[str]:
    """The parts of `model.stages[0].repeat`, as of `model.stages.0.repeat`."""
    return re.sub(r"\[(\d+)\]", r".\1", field).split(".")


def _look_up(tree: Any, parts: list[str]) -> Any:
    """The value under dotted parts. `model.layer`, which resolving spreads over the stages, is what all the layers agree on."""
    if not parts:
        return tree
    first, *rest = parts
    if isinstance(tree, list):
        return _look_up(tree[int(first)], rest) if first.isdigit() and int(first) < len(tree) else None
    if not isinstance(tree, dict):
        return None
    if first == "layer" and tree.get("layer") is None and isinstance(stages := tree.get("stages"), list):
        layers = [layer for stage in stages if isinstance(stage, dict) for layer in stage.get("layers", [])]
        values = {str(value): value for layer in layers if (value := _look_up(layer, rest)) is not None}
        return next(iter(values.values())) if len(values) == 1 else ", ".join(values) or None
    return _look_up(tree.get(first), rest)
