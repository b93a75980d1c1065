"""A model's parameters as a flat dictionary: dotted path -> array.

Checkpoints, the optimiser, exports and logs all speak of these names, and none of them depends on Flax.
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
from flax import nnx

from mnemax.models.decoder import Decoder
from mnemax.sharding import Axes, shard

if TYPE_CHECKING:
    from mnemax.configs.schema import ModelConfig

type Params = dict[str, jax.Array]

# Programs of random bits compile three times as fast so, and run as fast: what runs once need not be optimised.
QUICK = {"xla_backend_optimization_level": "1"}


@dataclass(frozen=True)
class Weight:
    """What is known of a parameter without its values.

    Attributes:
        shape: with the stacked `layers` axis first, where there is one.
        axes: logical axis names, one a dimension.
        contract: how many axes (after `layers`) are contracted with the input; 0: a vector.
    """

    shape: tuple[int, ...]
    axes: Axes
    contract: int

    @property
    def stacked(self) -> bool:
        return self.axes[:1] == ("layers",)

    @property
    def size(self) -> int:
        return math.prod(self.shape)


def _flat(model: Decoder):
    return {".".join(map(str, path)): variable for path, variable in nnx.to_flat_state(nnx.state(model, nnx.Param))}


def weights(config: "ModelConfig") -> dict[str, Weight]:
    """Every parameter of a configuration; nothing is allocated."""
    model = jax.eval_shape(lambda: Decoder(config, jax.random.key(0)))
    described = {}
    for name, variable in _flat(model).items():
        shape = variable.get_value().shape
        axes = variable.axes if len(variable.axes) == len(shape) else ("layers", *variable.axes)
        described[name] = Weight(shape, axes, variable.contract)
    return described


def init_params(config: "ModelConfig", key: jax.Array) -> Params:
    """Initial parameters, float32, laid out by their logical axes on the current mesh."""
    described = weights(config)
    alone = not isinstance(key, jax.core.Tracer)  # a part of another program has no options of its own

    @partial(jax.jit, compiler_options=QUICK if alone and jax.default_backend() == "cpu" else None)
    def build(key: jax.Array) -> Params:
        values = {name: variable[...] for name, variable in _flat(Decoder(config, key)).items()}
        return {name: shard(value, *described[name].axes) for name, value in values.items()}

    return build(key)


def of_memory(name: str) -> bool:
    """Whether a parameter belongs to a memory or to a retention: the rest of the model is whole without it."""
    return ".attention.memory." in name or ".attention.retention." in name


def different(there: dict[str, Weight], here: dict[str, Weight], source: str, *, fresh: bool = True) -> str | None:
    """The first difference between two models' weights, as words; None where one's values can stand in the other.

    Weights of memories and retentions may be left over, and, where `fresh`, may be lacking: they stay as they were initialised.
    """
    for name, weight in here.items():
        if name not in there and not (fresh and of_memory(name)):
            return f"{source} lacks the weight '{name}', whose shape is {weight.shape} here"
        if name in there and there[name].shape != weight.shape:
            return f"the weight '{name}' has shape {there[name].shape} in {source} and {weight.shape} here"
    for name, weight in there.items():
        if name not in here and not of_memory(name):
            return f"{source} has the weight '{name}' of shape {weight.shape}, for which there is no place here"
    return None


def unstack(params: Params, described: dict[str, Weight]) -> dict[str, Any]:
    """Stacked weights as tuples of one array a repeat. Decoding reads every weight once a token: a slice would be a copy."""
    return {n: tuple(p[i] for i in range(p.shape[0])) if described[n].stacked else p for n, p in params.items()}


def bind(config: "ModelConfig", params: Params) -> Decoder:
    """The model that holds these parameters. Cheap under `jax.jit`: only the structure is traced."""
    model = jax.eval_shape(lambda: Decoder(config, jax.random.key(0)))
    graph, state = nnx.split(model)
    flat = {path: variable.replace(params[".".join(map(str, path))]) for path, variable in nnx.to_flat_state(state)}
    return nnx.merge(graph, nnx.from_flat_state(flat))
