"""A model as its list of layers, however stages group them; and what two layers' configurations do not share."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from mnemax.configs.base import Config
from mnemax.models.params import Params
from mnemax.sharding import Axes

if TYPE_CHECKING:
    from mnemax.configs.schema import ModelConfig
    from mnemax.layers.projections import ProjectionConfig

type Weights = dict[str, np.ndarray]
"""Weights by their names within a layer."""


class Unfit(Exception):
    """Why a model cannot be carried over, in words without a full stop."""


@dataclass(frozen=True)
class Layer:
    """What is carried over of an attention layer.

    Attributes:
        reads: whether it reads another layer's memory, and has no weights for entries.
        weights: its projection's.
        axes: their logical axes.
        moment: E[x x^T] of its input.
        offset: what is added to the scale of a norm.
    """

    projection: "ProjectionConfig"
    reads: bool
    weights: Weights
    axes: dict[str, Axes]
    moment: Float[np.ndarray, "D D"]
    offset: int


def places(config: "ModelConfig") -> list[tuple[str, int]]:
    """For each layer, from first to last: how the names of its parameters begin, and its place among those stacked in them."""
    return [
        (f"stages.{s}.layers.{j}.", repeat)
        for s, stage in enumerate(config.stages)
        for repeat in range(stage.repeat)
        for j in range(len(stage.layers))
    ]


def unrolled(config: "ModelConfig", params: Params) -> tuple[Weights, list[Weights]]:
    """What belongs to no layer (embedding, final norm, unembedding), and each layer's weights."""
    values = {name: np.asarray(value) for name, value in params.items()}
    layers = [
        {name.removeprefix(prefix): value[repeat] for name, value in values.items() if name.startswith(prefix)}
        for prefix, repeat in places(config)
    ]
    return {name: value for name, value in values.items() if not name.startswith("stages.")}, layers


def rolled(config: "ModelConfig", ends: Weights, layers: list[Weights]) -> Weights:
    """The inverse of `unrolled`, for a model whose stages may be others."""
    repeats: dict[str, list[np.ndarray]] = {}
    for (prefix, _), layer in zip(places(config), layers, strict=True):
        for name, value in layer.items():
            repeats.setdefault(prefix + name, []).append(value)
    return ends | {name: np.stack(values) for name, values in repeats.items()}


def difference(before: Config, after: Config, *, but: tuple[str, ...] = ()) -> str | None:
    """The first field that two configurations of one class do not share, as words; None where they agree in all but `but`."""
    for field in type(before).model_fields:
        a, b = getattr(before, field), getattr(after, field)
        if field in but or a == b:
            continue
        if isinstance(a, Config) and type(a) is type(b):
            return f"{field}.{difference(a, b)}"
        return f"{field} is {_said(a)} before and {_said(b)} after"
    return None


def _said(value: Any) -> str:
    return str(getattr(value, "kind", value))
