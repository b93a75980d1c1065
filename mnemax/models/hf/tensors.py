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
    """A parameter of ours, or one of its stacked layers, as a checkpoint's tensor holds it.

    Attributes:
        path: our parameter.
        weight: its description.
        repeat: which of its stacked layers; None: it is not stacked.
        paired: so many of its last channels are rotated, and the checkpoint has the two of each rotated pair side by side.
    """

    path: str
    weight: Weight
    repeat: int | None
    paired: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        """In our layout, inputs first and heads apart."""
        return self.weight.shape if self.repeat is None else self.weight.shape[1:]

    def of(self, params: Params) -> np.ndarray:
        value = params[self.path] if self.repeat is None else params[self.path][self.repeat]
        return _turned(np.asarray(value), self.paired, 2)

    def ours(self, value: np.ndarray) -> np.ndarray:
        return _turned(value, self.paired, self.paired // 2)


def _turned(value: np.ndarray, width: int, rows: int) -> np.ndarray:
    """The last `width` channels, taken as a matrix of so many rows, transposed: halves become adjacent pairs, or these halves."""
    if not width:
        return value
    rest, last = np.split(value, [value.shape[-1] - width], axis=-1)
    turned = last.reshape(*last.shape[:-1], rows, width // rows).swapaxes(-1, -2)
    return np.concatenate([rest, turned.reshape(last.shape)], axis=-1)


@dataclass(frozen=True)
class Tensor:
    """One tensor of a checkpoint: a parameter of ours, or several side by side along their last axis."""

    parts: tuple[Part, ...]

    @property
    def own_shape(self) -> tuple[int, ...]:
        """In our layout."""
        return (*self.parts[0].shape[:-1], sum(part.shape[-1] for part in self.parts))

    @property
    def shape(self) -> tuple[int, ...]:
        """In torch's layout: [out, in] for matrices, heads flattened; the embedding, which is not multiplied by, is the same."""
        if self._embeds:
            return self.own_shape
        contract = self.parts[0].weight.contract
        inputs, outputs = self.own_shape[:contract], math.prod(self.own_shape[contract:])
        return (outputs, math.prod(inputs)) if inputs else (outputs,)

    def to_torch(self, params: Params) -> np.ndarray:
        values = [part.of(params) for part in self.parts]
        value = values[0] if len(values) == 1 else np.concatenate(values, axis=-1)
        return value if self._embeds else value.reshape(self.shape[::-1]).T

    def from_torch(self, value: np.ndarray, part: Part) -> np.ndarray:
        """What it holds of a part, in our layout."""
        value = value if self._embeds else value.T.reshape(self.own_shape)
        start = sum(other.shape[-1] for other in self.parts[: self.parts.index(part)])
        return part.ours(value[..., start : start + part.shape[-1]])

    @property
    def _embeds(self) -> bool:
        return self.parts[0].path == "embedding"


@dataclass(frozen=True)
class Constant:
    """A tensor of one number that has no counterpart of ours, and one value for all."""

    value: float
    shape: tuple[int, ...] = (1,)

    def to_torch(self, params: Params) -> np.ndarray:
        return np.full(self.shape, self.value, np.float32)


def layout(config: ModelConfig, family: Family) -> dict[str, Tensor | Constant]:
    """Every tensor of a model's checkpoint, in the order of the layers."""
    described = weights(config)
    places = [
        (f"stages.{s}.layers.{j}.", repeat, layer)
        for s, stage in enumerate(config.stages)
        for repeat in range(stage.repeat)
        for j, layer in enumerate(stage.layers)
    ]
    ends = {path: Tensor((Part(path, weight, None),)) for path, weight in described.items() if not weight.stacked}
    tensors: dict[str, Tensor | Constant] = {family.names["embedding"]: ends.pop("embedding")}
    for i, (prefix, repeat, layer) in enumerate(places):
        names, paired = family.names | family.layer_names(layer), family.paired(layer)
        parts: dict[str, list[Part]] = {}
        own = [path.removeprefix(prefix) for path in described if path.startswith(prefix)]
        for name in sorted(own, key=list(names).index):
            part = Part(prefix + name, described[prefix + name], repeat, paired.get(name, 0))
            parts.setdefault(names[name].format(i=i), []).append(part)
        tensors |= {name: Tensor(tuple(together)) for name, together in parts.items()}
        tensors |= {name.format(i=i): Constant(value) for name, value in family.constants.items()}
    return tensors | {family.names[path]: tensor for path, tensor in ends.items()}


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
    checkpoint, tensors = Checkpoint(folder), layout(config, family)
    _check(checkpoint, tensors, folder, config, family)
    by_path: dict[str, list[tuple[str, Tensor, Part]]] = {}
    for name, tensor in tensors.items():
        if isinstance(tensor, Tensor):
            for part in tensor.parts:
                by_path.setdefault(part.path, []).append((name, tensor, part))
    params: Params = {}
    for path, named in by_path.items():
        weight = named[0][2].weight
        value = np.empty(weight.shape, np.float32)
        for name, tensor, part in named:
            value[... if part.repeat is None else part.repeat] = tensor.from_torch(checkpoint.read(name), part)
        params[path] = shard(jnp.asarray(value), *weight.axes)
    return params


def _check(
    checkpoint: Checkpoint,
    tensors: dict[str, Tensor | Constant],
    folder: Path,
    config: ModelConfig,
    family: Family,
) -> None:
    if missing := [name for name in tensors if name not in checkpoint.files]:
        raise UserError(
            f"{folder} lacks {len(missing)} of the {len(tensors)} tensors that its config.json asks for: {_some(missing)}."
        )
    extra = [name for name in checkpoint.files if name not in tensors and not name.endswith("rotary_emb.inv_freq")]
    tied = family.names["unembedding"]
    if config.tie_embeddings and tied in extra and _equal(checkpoint, tied, family.names["embedding"]):
        extra.remove(tied)
    if extra:
        raise UserError(f"{folder} has {len(extra)} tensors that its config.json has no place for: {_some(extra)}.")
    for name, tensor in tensors.items():
        if (shape := checkpoint.shape(name)) != tensor.shape:
            raise UserError(f"{checkpoint.paths[name]}: {name} has shape {shape}; config.json asks for {tensor.shape}.")
        if (dtype := checkpoint.dtype(name)) not in READABLE:
            raise UserError(f"{checkpoint.paths[name]}: {name} is of type {dtype}; allowed: {', '.join(READABLE)}.")
        if isinstance(tensor, Constant) and (value := checkpoint.read(name).item()) != tensor.value:
            raise UserError(
                f"{checkpoint.paths[name]}: {name} is {value}; our model has no such factor: it must be {tensor.value}."
            )


def _equal(checkpoint: Checkpoint, a: str, b: str) -> bool:
    return b in checkpoint.files and np.array_equal(checkpoint.read(a), checkpoint.read(b))


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


def write_params(
    folder: Path,
    params: Params,
    tensors: dict[str, Tensor | Constant],
    dtype: np.dtype,
    max_shard_bytes: int,
) -> None:
    """The tensors in files of at most `max_shard_bytes` (a larger tensor has its own), and their index if they are several."""
    from safetensors.numpy import save_file

    shards = list(_split(tensors, dtype.itemsize, max_shard_bytes))
    files = [SINGLE] if len(shards) == 1 else [f"model-{k:05}-of-{len(shards):05}.safetensors" for k in range(1, len(shards) + 1)]
    for file, names in zip(files, shards, strict=True):
        save_file(
            {name: np.ascontiguousarray(tensors[name].to_torch(params).astype(dtype)) for name in names},
            folder / file,
            metadata={"format": "pt"},
        )
    if len(files) > 1:
        count = sum(math.prod(tensor.shape) for tensor in tensors.values())
        index = {
            "metadata": {
                "total_parameters": count,
                "total_size": count * dtype.itemsize,
            },
            "weight_map": {name: file for file, names in zip(files, shards, strict=True) for name in names},
        }
        (folder / INDEX).write_text(json.dumps(index, indent=2, sort_keys=True) + "\n", "utf-8")


def _split(tensors: dict[str, Tensor | Constant], itemsize: int, limit: int) -> Iterator[list[str]]:
    names, size = [], 0
    for name, tensor in tensors.items():
        own = math.prod(tensor.shape) * itemsize
        if names and size + own > limit:
            yield names
            names, size = [], 0
        names.append(name)
        size += own
    yield names
