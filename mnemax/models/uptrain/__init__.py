"""An existing model as one of a smaller cache, whose training goes on (uptraining).

A rule says how one projection becomes another: `gqa.py` pools heads and layers, `mla.py` makes a latent, `tpla.py` slices it.
"""

import contextlib
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from mnemax.configs.schema import ModelConfig
from mnemax.models.params import Params, Weight, different, init_params, weights
from mnemax.models.uptrain import gqa, mla, tpla
from mnemax.models.uptrain.layers import Layer, Unfit, Weights, difference, places, rolled, unrolled
from mnemax.models.uptrain.moments import Moments, moments
from mnemax.registry import kind_of

if TYPE_CHECKING:
    from mnemax.configs.schema import AttentionConfig
    from mnemax.layers.projections import ProjectionConfig

__all__ = ["Moments", "Unfit", "changes_kind", "convert", "moments"]

type Rule = Callable[[Layer, list[Layer], "ProjectionConfig", bool], Weights]
"""(the layer, those that will read it, its new projection, whether it will read another's) -> the new projection's weights."""

RULES: dict[tuple[str | None, str | None], Rule] = {
    ("gqa", "gqa"): gqa.pooled,
    ("gqa", "mla"): mla.factorised,
    ("mla", "tpla"): tpla.sliced,
}
FREE = ("max_length", "dtype", "init", "layer", "stages")
"""Fields of a model that decide no weight and may change."""
PROJECTION = "attention.projection."


def convert(config: ModelConfig, params: Params, target: ModelConfig, inputs: Moments) -> Params:
    """The parameters of `target` that come nearest to the model that `config` and `params` are.

    Projections follow a rule for each pair of kinds; all else is copied, layer by layer, however stages group them. Weights of
    memories and retentions that are new begin as initialised, and those for which there is no place are dropped.

    Args:
        inputs: what each layer attends over, as `moments` tells.

    Raises:
        Unfit: something cannot be carried over; the words name the field on both sides.
    """
    if words := difference(config, target, but=FREE):
        raise Unfit(words)
    if len(config.layers) != len(target.layers):
        raise Unfit(f"there are {len(config.layers)} layers before and {len(target.layers)} after")
    (ends, own), after = unrolled(config, params), target.sources
    layers = _layers(config, own, inputs)
    rules, projections = [], []
    for i, (layer, old, new) in enumerate(zip(layers, config.layers, target.layers, strict=True)):
        with _naming(i):
            if words := difference(old, new, but=("attention",)) or _attending(old.attention, new.attention):
                raise Unfit(words)
            rules.append(_rule(layer, new.attention.projection, after[i] != i))
    for i, (layer, rule, new) in enumerate(zip(layers, rules, target.layers, strict=True)):
        readers = [layers[j] for j, source in enumerate(after) if source == i != j]
        with _naming(i):
            projections.append(rule(layer, readers, new.attention.projection, after[i] != i))
    converted = unrolled(target, init_params(target, jax.random.key(0)))[1]
    for i, (layer, projection) in enumerate(zip(own, projections, strict=True)):
        rest = {name: value for name, value in layer.items() if not name.startswith(PROJECTION)}
        converted[i] = _laid_over(converted[i], rest | {PROJECTION + name: value for name, value in projection.items()}, i)
    return {name: jnp.asarray(value, jnp.float32) for name, value in rolled(target, ends, converted).items()}


def _layers(config: ModelConfig, own: list[Weights], inputs: Moments) -> list[Layer]:
    described, found = weights(config), config.sources
    layers = []
    for i, (prefix, _) in enumerate(places(config)):
        projection = config.layers[i].attention.projection
        axes = {name.removeprefix(prefix): weight.axes[1:] for name, weight in described.items() if name.startswith(prefix)}
        layers.append(Layer(projection, found[i] != i, _of_projection(own[i]), _of_projection(axes), inputs[i], config.norm.offset))
    return layers


def changes_kind(config: ModelConfig, target: ModelConfig) -> bool:
    """Whether any projection becomes one of another kind, for which it matters what its layer attends over."""
    kinds = ([type(layer.attention.projection) for layer in model.layers] for model in (config, target))
    return next(kinds) != next(kinds)


@contextlib.contextmanager
def _naming(i: int) -> Generator[None]:
    try:
        yield
    except Unfit as reason:
        raise Unfit(f"layer {i}: {reason}") from None


def _rule(layer: Layer, new: "ProjectionConfig", reads: bool) -> Rule:
    kinds = kind_of(type(layer.projection)), kind_of(type(new))
    if layer.reads and not reads:
        raise Unfit("it reads another layer's memory before and writes its own after")
    if kinds in RULES:
        return RULES[kinds]
    if layer.projection == new and layer.reads == reads:
        return lambda layer, *_: layer.weights
    allowed = ", ".join(f"{a} to {b}" for a, b in RULES)
    raise Unfit(f"projection is {kinds[0]} before and {kinds[1]} after, and only these change: {allowed}")


def _attending(old: "AttentionConfig", new: "AttentionConfig") -> str | None:
    """Why a layer cannot become one that attends or does not, or change without attending; None where it can."""
    if old.attends != new.attends:
        return f"attention.attends is {old.attends} before and {new.attends} after"
    if not old.attends and type(old.projection) is not type(new.projection):
        return "attention.projection changes its kind in a layer that only writes (attends: false)"
    return None


def _of_projection[T](layer: dict[str, T]) -> dict[str, T]:
    return {name.removeprefix(PROJECTION): value for name, value in layer.items() if name.startswith(PROJECTION)}


def _laid_over(fresh: Weights, given: Weights, i: int) -> Weights:
    """
    Raises:
        Unfit: a weight is lacking, left over, or of another shape, those of memories and retentions excepted.
    """
    there, here = ({f"layers.{i}.{n}": Weight(v.shape, (), 0) for n, v in side.items()} for side in (given, fresh))
    if words := different(there, here, "the model before"):
        raise Unfit(words)
    return fresh | {name: value for name, value in given.items() if name in fresh}
