"""What a family of Hugging Face models is, and which one holds a model."""

import functools
import importlib
import math
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from mnemax.configs.schema import LayerConfig, ModelConfig
from mnemax.errors import UserError

type HFConfig = dict[str, Any]
"""The content of a config.json."""


class Unfit(Exception):
    """Why one side cannot express what the other has, in a few words."""


@dataclass(frozen=True)
class Family:
    """One architecture of transformers. A module of this folder that defines FAMILY adds one.

    Attributes:
        architecture: class name in transformers.
        model_type: its name in config.json.
        defaults: what transformers takes for a field that config.json leaves out.
        names: name of our parameter (within its layer) -> name in the checkpoint, where {i} is the layer's number.
            Parameters of one name stand in its tensor side by side along their last axis, in the order of this table.
        read: config.json with defaults filled in -> fields of ModelConfig; raises Unfit.
        write: model -> config.json, as near as the family comes; raises Unfit. `write_config` reads it back, so it checks nothing.
        constants: tensor of each layer that has no counterpart of ours, of one number -> the number that it must be.
        layer_names: the names that hang on a layer's fields.
        paired: parameter of a layer -> how many of its last channels are rotated, where the checkpoint has the two of each rotated
            pair side by side; ours are half the width apart.
    """

    architecture: str
    model_type: str
    defaults: HFConfig
    names: dict[str, str]
    read: Callable[[HFConfig], dict[str, Any]]
    write: Callable[[ModelConfig], HFConfig]
    constants: dict[str, float] = field(default_factory=dict)
    layer_names: Callable[[LayerConfig], dict[str, str]] = lambda layer: {}
    paired: Callable[[LayerConfig], dict[str, int]] = lambda layer: {}

    def read_config(self, hf: HFConfig) -> ModelConfig:
        """The model that a config.json describes.

        Raises:
            Unfit: it has what our model has not.
            pydantic.ValidationError, TypeError, ValueError, ...: its values make no sense.
        """
        if hf.get("quantization_config"):
            raise Unfit("its weights are quantised (quantization_config); only float32, float16 and bfloat16 can be read")
        dtype = str(hf.get("dtype") or hf.get("torch_dtype") or "float32")
        fields = self.read({**self.defaults, **hf})
        return ModelConfig.model_validate({**fields, "dtype": "float32" if dtype == "float32" else "bfloat16"})

    def write_config(self, model: ModelConfig) -> HFConfig:
        """The config.json of a model that this family holds exactly.

        Raises:
            Unfit: it cannot; says which field differs.
        """
        hf = {
            "architectures": [self.architecture],
            "model_type": self.model_type,
            **self.write(model),
        }
        if difference := _difference(_computed(model), _computed(self.read_config(hf))):
            raise Unfit(difference)
        return hf


@functools.cache
def families() -> dict[str, Family]:
    """Every family by the name of its file."""
    package = __package__
    assert package is not None
    modules = {
        m.name: importlib.import_module(f"{package}.{m.name}")
        for m in pkgutil.iter_modules(importlib.import_module(package).__path__)
    }
    return {name: module.FAMILY for name, module in sorted(modules.items()) if hasattr(module, "FAMILY")}


def family_of(hf: HFConfig) -> Family:
    """The family of a config.json.

    Raises:
        Unfit: none of ours.
    """
    known = {family.architecture: family for family in families().values()}
    by_type = {family.model_type: family.architecture for family in families().values()}
    given = (hf.get("architectures") or [by_type.get(hf.get("model_type", ""), hf.get("model_type"))])[0]
    if given not in known:
        raise Unfit(f"architecture '{given}' is not known; known: {', '.join(known)}")
    return known[given]


def holder(model: ModelConfig) -> tuple[Family, HFConfig]:
    """The first family that holds a model exactly, and the model's config.json there.

    Raises:
        UserError: none does; says why for each.
    """
    reasons = []
    for name, family in families().items():
        try:
            return family, family.write_config(model)
        except Unfit as reason:
            reasons.append(f"{name}: {reason}")
    raise UserError(f"No Hugging Face family holds this model exactly ({'; '.join(reasons)}).")


def _computed(model: ModelConfig) -> dict[str, Any]:
    """All that decides a model's output, in one form for equal models."""
    fields = model.model_dump(exclude={"dtype", "init", "layer", "stages"})
    if fields["embed_scale"] == "sqrt_width":
        fields["embed_scale"] = model.width**0.5
    fields["layers"] = layers = [layer.model_dump() for layer in model.layers]
    for i, source in enumerate(model.sources):
        attention = layers[i]["attention"]
        del attention["write"]  # names are ours alone: what counts is which layer is read
        if source != i:
            attention |= {"read": f"layers[{source}]", "memory": layers[source]["attention"]["memory"]}
        projection = attention["projection"]
        if "scale" in projection and projection["scale"] is None:
            width = projection["head_width"] if "head_width" in projection else projection["nope_width"] + projection["rope_width"]
            projection["scale"] = width**-0.5
    return fields


def _difference(ours: Any, theirs: Any, path: str = "") -> str | None:
    """The first field in which a model differs from what a family makes of it."""
    if isinstance(ours, dict) and isinstance(theirs, dict) and ours.get("kind") == theirs.get("kind"):
        pairs = [(f"{path}.{key}" if path else key, ours.get(key), theirs.get(key)) for key in {**ours, **theirs}]
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        pairs = [(f"{path}[{i}]", *both) for i, both in enumerate(zip(ours, theirs, strict=True))]
    elif isinstance(ours, float) and isinstance(theirs, float) and math.isclose(ours, theirs, rel_tol=1e-9):
        return None
    else:
        return None if ours == theirs else f"{path} is {_short(ours)}, there {_short(theirs)}"
    return next(filter(None, (_difference(mine, other, at) for at, mine, other in pairs)), None)


def _short(value: Any) -> Any:
    return value.get("kind", "set") if isinstance(value, dict) else value
