"""Several latents a token (gla), and slices of one (tpla), against multi-head latent attention of the same weights."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from mnemax.configs.load import load_model
from mnemax.configs.schema import ModelConfig
from mnemax.evaluation.accounting import layer_costs
from mnemax.layers.attention import Attention
from mnemax.layers.memories import Place
from mnemax.layers.param import Init

B, T, D, N, R = 2, 9, 64, 4, 32
RNG = np.random.default_rng(0)
X = jnp.asarray(RNG.standard_normal((B, T, D)), jnp.float32)
PLACE = Place(jnp.arange(T), jnp.tile(jnp.arange(T), (B, 1)))


def attention(kind: str, **fields) -> Attention:
    sizes = {"heads": N, "latent_width": R, "nope_width": 16, "rope_width": 8, "value_width": 16}
    config = load_model("llama").model_dump()
    for stage in config["stages"]:
        for layer in stage["layers"]:
            layer["attention"]["projection"] = {"kind": kind} | sizes | fields
    config = ModelConfig.model_validate(config)
    return Attention(config.layers[0].attention, config, Init(config, jax.random.key(0)))


def filled(attention: Attention) -> dict[str, np.ndarray]:
    values = {
        ".".join(map(str, path)): 0.3 * RNG.standard_normal(v[...].shape).astype(np.float32)
        for path, v in nnx.to_flat_state(nnx.state(attention, nnx.Param))
    }
    return values | {"projection.c_norm.scale": np.ones_like(values["projection.c_norm.scale"])}


def output(attention: Attention, values: dict[str, np.ndarray]):
    flat = {
        path: v.replace(jnp.asarray(values[".".join(map(str, path))]))
        for path, v in nnx.to_flat_state(nnx.state(attention, nnx.Param))
    }
    nnx.update(attention, nnx.from_flat_state(flat))
    return attention(X, PLACE, None, {}, "auto")[0]


def test_two_latents_are_two_layers_of_half_the_heads():
    gla = attention("gla", latent_width=R // 2)
    values = filled(gla)
    halves = 0
    for j, heads in enumerate((slice(0, 2), slice(2, 4))):
        own = {name: v[:, heads] if name[-3:] in ("u_k", "u_v", "w_q") else v for name, v in values.items()}
        own |= {"projection.w_c": values["projection.w_c"][:, j], "projection.w_o": values["projection.w_o"][heads]}
        halves += output(attention("mla", heads=2, latent_width=R // 2), own)
    np.testing.assert_allclose(output(gla, values), halves, atol=1e-5)


def test_absorbed_equals_expanded():
    gla = attention("gla", latent_width=R // 2)
    whole = output(gla, filled(gla))
    gla.projection._absorbs = lambda T, S: True
    np.testing.assert_allclose(gla(X, PLACE, None, {}, "auto")[0], whole, atol=1e-5)


def test_one_slice_is_mla():
    mla = attention("mla")
    values = filled(mla)
    np.testing.assert_allclose(output(attention("tpla", slices=1), values), output(mla, values), atol=1e-5)


def test_each_slice_has_its_own_softmax():
    """Slice i alone: MLA whose latents are 0 elsewhere after the norm; their sum is the whole."""
    mla, tpla = attention("mla"), attention("tpla", slices=2)
    values, halves = filled(mla), 0
    for slot in (slice(0, R // 2), slice(R // 2, R)):
        only = np.zeros(R, np.float32)
        only[slot] = 1
        halves += output(mla, values | {"projection.c_norm.scale": only})
    np.testing.assert_allclose(output(tpla, values), halves, atol=1e-5)


@pytest.mark.parametrize(("name", "numbers"), [("mla", 32 + 8), ("gla", 2 * 16 + 8), ("tpla", 32 + 8)])
def test_bytes(name, numbers):
    assert layer_costs(load_model(name), 100)[0].state_bytes == 4 * 100 * numbers
