"""The tensors of a checkpoint: which part of our parameters each is, and safetensors files, one tensor at a time."""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np

from mnemax.configs.schema import ModelConfig
from mnemax.errors import UserError
from mnemax.models.hf.family import Family
from mnemax.models.params import Params, Weight, weights
from mnemax.sharding import shard

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
DTYPES = {"float32": np.dtype(np.float32), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
READABLE = ("F32", "BF16", "F16")


@dataclass(frozen=True)
class Part:
    """What one tensor of a checkpoint is of ours.

    Attributes:
        path: our parameter.
        weight: its description.
        repeat: which of its stacked layers; None: it is not stacked.
    """

    path: str
    weight: Weight
    repeat: int | None

    @property
    def own_shape(self) -> tuple[int, ...]:
        """In our layout, inputs first and heads apart."""
        return self.weight.shape if self.repeat is None else self.weight.shape[1:]

    @property
    def shape(self) -> tuple[int, ...]:
        """In torch's layout: [out, in] for matrices, heads flattened; the embedding, which is not multiplied by, is the same."""
        if self.path == "embedding":
            return self.own_shape
        inputs = self.own_shape[: self.weight.contract]
        outputs = math.prod(self.own_shape[self.weight.contract :])
        return (outputs, math.prod(inputs)) if inputs else (outputs,)

    def to_torch(self, value: np.ndarray) -> np.ndarray:
        return value if self.path == "embedding" else value.reshape(self.shape[::-1]).T

    def from_torch(self, tensor: np.ndarray) -> np.ndarray:
        return tensor if self.path == "embedding" else tensor.T.reshape(self.own_shape)


def layout(config: ModelConfig, family: Family) -> dict[str, Part]:
    """Every tensor of a model's checkpoint, in the order of the layers."""
    described = weights(config)
    places = [
        (f"stages.{s}.layers.{j}.", repeat)
        for s, stage in enumerate(config.stages)
        for repeat in range(stage.repeat)
        for j in range(len(stage.layers))
    ]
    ends = {path: Part(path, weight, None) for path, weight in described.items() if not weight.stacked}
    parts = {family.names["embedding"]: ends.pop("embedding")}
    for i, (prefix, repeat) in enumerate(places):
        of_layer = {path: weight for path, weight in described.items() if path.startswith(prefix)}
        parts |= {family.names[p.removeprefix(prefix)].format(i=i): Part(p, w, repeat) for p, w in of_layer.items()}
    return parts | {family.names[path]: part for path, part in ends.items()}


class Checkpoint:
    """The safetensors files of a folder, mapped into memory; a tensor is read when it is asked for."""

    def __init__(self, folder: Path):
        """
        Raises:
            UserError: there are none, one that the index names is missing, or one is damaged.
        """
        from safetensors import SafetensorError, safe_open

        self.files: dict[str, Any] = {}
        self.paths: dict[str, Path] = {}
        for path in _shards(folder):
            try:
                file = safe_open(path, framework="np")
            except (SafetensorError, OSError) as error:
                raise UserError(f"{path} is no whole safetensors file: {error}.") from error
            self.files |= dict.fromkeys(file.keys(), file)
            self.paths |= dict.fromkeys(file.keys(), path)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.files[name].get_slice(name).get_shape())

    def dtype(self, name: str) -> str:
        return self.files[name].get_slice(name).get_dtype()

    def read(self, name: str) -> np.ndarray:
        return self.files[name].get_tensor(name)


def _shards(folder: Path) -> list[Path]:
    if (index := folder / INDEX).is_file():
        try:
            names = sorted(set(json.loads(index.read_text("utf-8"))["weight_map"].values()))
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise UserError(f"{index} is no index of safetensors files: it needs a 'weight_map' from tensor to file.") from error
        if missing := [name for name in names if not (folder / name).is_file()]:
            raise UserError(f"{index} names {_some(missing)}, which the folder lacks.")
        return [folder / name for name in names]
    if (folder / SINGLE).is_file():
        return [folder / SINGLE]
    raise UserError(f"{folder} has neither {SINGLE} nor {INDEX}; other formats of weights are not read.")


def read_params(folder: Path, config: ModelConfig, family: Family) -> Params:
    """The parameters in a folder, float32, laid out by their logical axes on the current mesh.

    Raises:
        UserError: tensors are missing or too many, or one has another shape or dtype than the configuration asks for.
    """
    checkpoint, parts = Checkpoint(folder), layout(config, family)
    _check(checkpoint, parts, folder, config, family)
    by_path: dict[str, list[tuple[str, Part]]] = {}
    for name, part in parts.items():
        by_path.setdefault(part.path, []).append((name, part))
    params: Params = {}
    for path, named in by_path.items():
        weight = named[0][1].weight
        value = np.empty(weight.shape, np.float32)
        for name, part in named:
            value[... if part.repeat is None else part.repeat] = part.from_torch(checkpoint.read(name))
        params[path] = shard(jnp.asarray(value), *weight.axes)
    return params


def _check(
    checkpoint: Checkpoint,
    parts: dict[str, Part],
    folder: Path,
    config: ModelConfig,
    family: Family,
) -> None:
    if missing := [name for name in parts if name not in checkpoint.files]:
        raise UserError(
            f"{folder} lacks {len(missing)} of the {len(parts)} tensors that its config.json asks for: {_some(missing)}."
        )
    extra = [name for name in checkpoint.files if name not in parts and not name.endswith("rotary_emb.inv_freq")]
    tied = family.names["unembedding"]
    if config.tie_embeddings and tied in extra and _equal(checkpoint, tied, family.names["embedding"]):
        extra.remove(tied)
    if extra:
        raise UserError(f"{folder} has {len(extra)} tensors that its config.json has no place for: {_some(extra)}.")
    for name, part in parts.items():
        if (shape := checkpoint.shape(name)) != part.shape:
            raise UserError(f"{checkpoint.paths[name]}: {name} has shape {shape}; config.json asks for {part.shape}.")
        if (dtype := checkpoint.dtype(name)) not in READABLE:
            raise UserError(f"{checkpoint.paths[name]}: {name} is of type {dtype}; allowed: {', '.join(READABLE)}.")


def _equal(checkpoint: Checkpoint, a: str, b: str) -> bool:
    return b in checkpoint.files and np.array_equal(checkpoint.read(a), checkpoint.read(b))


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


def write_params(
    folder: Path,
    params: Params,
    parts: dict[str, Part],
    dtype: np.dtype,
    max_shard_bytes: int,
) -> None:
    """The tensors in files of at most `max_shard_bytes` (a larger tensor has its own), and their index if they are several."""
    from safetensors.numpy import save_file

    shards = list(_split(parts, dtype.itemsize, max_shard_bytes))
    files = [SINGLE] if len(shards) == 1 else [f"model-{k:05}-of-{len(shards):05}.safetensors" for k in range(1, len(shards) + 1)]
    for file, names in zip(files, shards, strict=True):
        save_file(
            {name: _tensor(params, parts[name], dtype) for name in names},
            folder / file,
            metadata={"format": "pt"},
        )
    if len(files) > 1:
        count = sum(math.prod(part.shape) for part in parts.values())
        index = {
            "metadata": {
                "total_parameters": count,
                "total_size": count * dtype.itemsize,
            },
            "weight_map": {name: file for file, names in zip(files, shards, strict=True) for name in names},
        }
        (folder / INDEX).write_text(json.dumps(index, indent=2, sort_keys=True) + "\n", "utf-8")


def _split(parts: dict[str, Part], itemsize: int, limit: int) -> Iterator[list[str]]:
    names, size = [], 0
    for name, part in parts.items():
        own = math.prod(part.shape) * itemsize
        if names and size + own > limit:
            yield names
            names, size = [], 0
        names.append(name)
        size += own
    yield names


def _tensor(params: Params, part: Part, dtype: np.dtype) -> np.ndarray:
    value = params[part.path] if part.repeat is None else params[part.path][part.repeat]
    return np.ascontiguousarray(part.to_torch(np.asarray(value)).astype(dtype))
