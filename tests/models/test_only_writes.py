"""A layer that only writes and one that reads it are one layer taken apart: with its weights they give what it gives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mnemax.configs.load import load_model
from mnemax.configs.schema import ModelConfig
from mnemax.evaluation.accounting import forward_flops, layer_costs, state_bytes
from mnemax.models.params import Params, bind, weights

TOKENS = jnp.asarray(np.random.default_rng(0).integers(0, 264, (2, 12), np.int32))
LAYER, APART = "stages.0.layers.0.", ("stages.0.layers.0.", "stages.0.layers.1.")


def whole_and_apart(name: str) -> tuple[ModelConfig, ModelConfig]:
    """A shipped model's first layer alone, as it is and taken apart."""
    config = load_model(name, ["dtype=float32"])
    layer = config.layers[0].model_dump()
    writer = {"attention": layer["attention"] | {"write": "kv", "attends": False}, "feedforward": None}
    reader = {"attention": {"projection": layer["attention"]["projection"], "read": "kv"}, "feedforward": layer["feedforward"]}
    sizes = config.model_dump(exclude={"stages", "layer"})
    whole, apart = (ModelConfig.model_validate(sizes | {"stages": [{"layers": layers}]}) for layers in ([layer], [writer, reader]))
    return whole, apart


def random_params(config: ModelConfig) -> Params:
    rng = np.random.default_rng(0)
    return {name: jnp.asarray(0.3 * rng.standard_normal(weight.shape), jnp.float32) for name, weight in weights(config).items()}


def taken_apart(params: Params, apart: ModelConfig) -> Params:
    """Each weight of the whole layer in the part that has it; the norm before attention in both."""
    return {name: params[name.replace(APART[1], LAYER)] for name in weights(apart)}


@pytest.mark.parametrize(
    "name", ["llama", "dynamic_convolution", "mla", "gla", "tpla", "gta", "diffqkv", "shared_kv", "yoco", "gated_deltanet"]
)
def test_the_parts_of_a_layer_are_the_layer(name):
    whole, apart = whole_and_apart(name)
    params = random_params(whole)
    parts = taken_apart(params, apart)
    of_layer = {key for key in params if key.startswith(LAYER)}
    twice = {key for key in of_layer if all(key.replace(LAYER, part) in parts for part in APART)}
    assert {key.replace(APART[1], LAYER) for key in parts} == params.keys()  # no weight is lost
    assert twice == {LAYER + "attention_norm.scale"}  # nor is any there twice
    logits = [np.asarray(jax.jit(lambda p, c=c: bind(c, p)(TOKENS)[0])(p)) for c, p in ((whole, params), (apart, parts))]
    np.testing.assert_allclose(logits[1], logits[0], rtol=1e-5, atol=1e-5)
    assert state_bytes(apart, 1, 64) == state_bytes(whole, 1, 64)
    assert forward_flops(apart, 64) == pytest.approx(forward_flops(whole, 64))


def test_who_only_writes_reads_nothing():
    writer, reader = layer_costs(whole_and_apart("llama")[1], 64)
    assert (writer.read_bytes, reader.entry_bytes, reader.state_bytes) == (0, 0, 0)
    assert writer.state_bytes == reader.read_bytes > 0
