"""Recurrent layers against those of transformers with the same weights, and against formulas."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from mnemax.configs.load import load_model
from mnemax.layers.attention import Attention
from mnemax.layers.memories import Place
from mnemax.layers.memories.taylor import phi
from mnemax.layers.param import Init

T = 21
X = np.random.default_rng(0).standard_normal((2, T, 64)).astype(np.float32)


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


def layer_and_weights(model: str):
    """The first layer of a model with weights of every size, and what it makes of X."""
    config = load_model(model)
    attention = Attention(config.layers[0].attention, config, Init(config, jax.random.key(0)))
    rng = np.random.default_rng(1)
    state = jax.tree.map(lambda a: a + 0.1 * rng.standard_normal(a.shape).astype(np.float32), nnx.state(attention, nnx.Param))
    nnx.update(attention, state)
    index = jnp.arange(T)
    out = attention(jnp.asarray(X), Place(index, jnp.tile(index, (2, 1))), None, {}, "auto")[0]
    weights = {".".join(map(str, path[1:])): np.asarray(v[...]) for path, v in nnx.to_flat_state(state)}
    return out, weights


def rows(weight: np.ndarray) -> np.ndarray:
    """[D, heads, width] as torch keeps it: [heads * width, D]."""
    return weight.reshape(64, -1).T


def taps(weight: np.ndarray) -> np.ndarray:
    """[W, heads, width] as a depthwise Conv1d keeps it: [heads * width, 1, W], the oldest token first."""
    return weight.reshape(len(weight), -1)[::-1].T[:, None]


@pytest.mark.torch
def test_mamba2_equals_transformers(torch):
    from transformers import Mamba2Config
    from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer

    out, w = layer_and_weights("mamba2")
    sizes = {"num_heads": 8, "head_dim": 16, "state_size": 16, "n_groups": 1, "hidden_size": 64, "expand": 2, "chunk_size": 8}
    mixer = Mamba2Mixer(Mamba2Config(**sizes, layer_norm_epsilon=1e-6, use_bias=False, use_conv_bias=True), layer_idx=0)
    load(torch, mixer, {
        "in_proj.weight": np.concatenate([rows(w[name]) for name in ("w_z", "w_x", "w_B", "w_C", "w_dt")]),
        "conv1d.weight": np.concatenate([taps(w[f"{name}_conv.taps"]) for name in "xBC"]),
        "conv1d.bias": np.concatenate([w[f"{name}_conv.bias"].ravel() for name in "xBC"]),
        "dt_bias": w["dt"], "A_log": w["A_log"], "D": w["D"],
        "norm.weight": w["norm.scale"].ravel(),
        "out_proj.weight": w["w_o"].reshape(-1, 64).T,
    })  # fmt: skip
    with torch.no_grad():
        np.testing.assert_allclose(out, mixer(torch.tensor(X)).numpy(), atol=1e-4)


@pytest.mark.torch
def test_gated_delta_equals_transformers(torch):
    from transformers import Qwen3NextConfig
    from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextGatedDeltaNet

    out, w = layer_and_weights("gated_deltanet")
    sizes = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16}
    mixer = Qwen3NextGatedDeltaNet(Qwen3NextConfig(**sizes, hidden_size=64, rms_norm_eps=1e-2), layer_idx=0)

    def by_key_head(*names):  # Qwen3-Next keeps a key head's rows together
        return np.concatenate([w[name].reshape(64, 2, -1) for name in names], axis=-1).reshape(64, -1).T

    load(torch, mixer, {
        "in_proj_qkvz.weight": by_key_head("w_q", "w_k", "w_v", "w_z"),
        "in_proj_ba.weight": by_key_head("w_b", "w_a"),
        "conv1d.weight": np.concatenate([taps(w[f"{name}_conv.taps"]) for name in "qkv"]),
        "dt_bias": w["dt"], "A_log": w["A_log"], "norm.weight": w["norm.scale"],
        "out_proj.weight": w["w_o"].reshape(-1, 64).T,
    })  # fmt: skip
    with torch.no_grad():
        np.testing.assert_allclose(out, mixer(torch.tensor(X)).numpy(), atol=1e-4)


def load(torch, module, weights: dict[str, np.ndarray]) -> None:
    module.load_state_dict({name: torch.tensor(np.ascontiguousarray(value)) for name, value in weights.items()}, strict=True)


def test_taylor_features():
    """phi(q)^T phi(k) = 1 + s + s^2 / 2."""
    q, k = jnp.asarray(np.random.default_rng(0).standard_normal((2, 9, 6)), jnp.float32)
    s = jnp.sum(q * k, axis=-1)
    np.testing.assert_allclose(jnp.sum(phi(q) * phi(k), axis=-1), 1 + s + s**2 / 2, rtol=1e-5)
