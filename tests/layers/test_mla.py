"""Multi-head latent attention against the formula in float64, against transformers, and against itself in its other form."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from mnemax.configs.load import load_model
from mnemax.evaluation.accounting import layer_costs
from mnemax.kernels.mask import Mask
from mnemax.layers.attention import Attention
from mnemax.layers.memories import Place
from mnemax.layers.param import Init

B, T, N, DN, DR, DV, R = 2, 13, 4, 16, 8, 16, 32
X = np.random.default_rng(0).standard_normal((B, T, 64)).astype(np.float32)
PLACE = Place(jnp.arange(T), jnp.tile(jnp.arange(T), (B, 1)))


@pytest.fixture(scope="module")
def attention() -> Attention:
    config = load_model("mla")
    attention = Attention(config.layers[0].attention, config, Init(config, jax.random.key(0)))
    rng = np.random.default_rng(1)
    state = jax.tree.map(lambda a: a + 0.2 * rng.standard_normal(a.shape).astype(np.float32), nnx.state(attention, nnx.Param))
    nnx.update(attention, state)
    return attention


@pytest.fixture(scope="module")
def w(attention) -> dict[str, np.ndarray]:
    state = nnx.to_flat_state(nnx.state(attention, nnx.Param))
    return {".".join(map(str, path[1:])): np.asarray(v[...], np.float64) for path, v in state}


def rms(x, scale):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * scale


def rotated(x):
    """Positions 0 .. T-1 on axis 1, pairs (i, i + DR/2)."""
    angle = np.arange(T)[:, None] * 10_000.0 ** (-np.arange(0, DR, 2) / DR)
    z = (x[..., : DR // 2] + 1j * x[..., DR // 2 :]) * np.exp(1j * angle).reshape(T, *(1,) * (x.ndim - 3), DR // 2)
    return np.concatenate([z.real, z.imag], axis=-1)


def test_equals_the_formula(attention, w):
    x = X.astype(np.float64)
    q = np.einsum("btr,rnh->btnh", rms(x @ w["w_dq"], w["q_norm.scale"]), w["w_q"])
    c, k_r = rms(x @ w["w_c"], w["c_norm.scale"]), rotated(x @ w["w_kr"])
    k, v = np.einsum("btr,rnh->btnh", c, w["u_k"]), np.einsum("btr,rnh->btnh", c, w["u_v"])
    logits = np.einsum("btnh,bsnh->bnts", q[..., :DN], k) + np.einsum("btnh,bsh->bnts", rotated(q[..., DN:]), k_r)
    logits = np.where(np.tril(np.ones((T, T), bool)), logits / np.sqrt(DN + DR), -np.inf)
    p = np.exp(logits - logits.max(-1, keepdims=True))
    out = np.einsum("bnts,bsnh->btnh", p / p.sum(-1, keepdims=True), v)
    found = attention(jnp.asarray(X), PLACE, None, {}, "auto")[0]
    np.testing.assert_allclose(found, np.einsum("btnh,nhd->btd", out, w["w_o"]), rtol=1e-4, atol=1e-5)


def test_absorbed_equals_expanded(attention):
    projection = attention.projection
    query, entry, _ = projection(jnp.asarray(X), PLACE, None)
    mask = Mask(PLACE.index, PLACE.start, PLACE.index[None])
    bias = jnp.asarray(np.random.default_rng(2).standard_normal((B, T, 1)), jnp.float32)
    many = super(type(projection), projection).attend(query, entry, mask, "auto", key_bias=jnp.repeat(bias, N, axis=2))
    one = projection.absorbed(query, entry, mask, "auto", key_bias=bias)
    for a, b in zip(one, many, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)
    assert not projection._absorbs(2048, 2048)
    assert projection._absorbs(1, 2048)


def test_bytes_of_deepseek_v2():
    """576 numbers a token and layer, in bfloat16."""
    sizes = "heads: 128, latent_width: 512, query_latent: 1536, nope_width: 128, rope_width: 64, value_width: 128"
    config = load_model("mla", [f"layer.attention.projection={{{sizes}}}", "width=5120", "dtype=bfloat16"])
    cost = layer_costs(config, 256)[0]
    assert (cost.entry_bytes, cost.state_bytes, cost.read_bytes) == (2 * 576, 2 * 576 * 256, 2 * 576 * 256)


@pytest.mark.torch
def test_equals_transformers(attention, w):
    torch = pytest.importorskip("torch")
    from transformers import DeepseekV3Config
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Attention, DeepseekV3RotaryEmbedding

    heads = {"num_attention_heads": N, "num_key_value_heads": N, "qk_nope_head_dim": DN, "qk_rope_head_dim": DR, "v_head_dim": DV}
    ranks = {"q_lora_rank": 48, "kv_lora_rank": R}
    config = DeepseekV3Config(hidden_size=64, **heads, **ranks, rope_interleave=False, attn_implementation="eager")
    layer = DeepseekV3Attention(config, layer_idx=0)

    def rows(*weights):  # [in, ...] as torch keeps it: [out, in]
        return np.concatenate([a.reshape(len(a), -1) for a in weights], axis=1).T

    kv = np.concatenate([w["u_k"], w["u_v"]], axis=-1)  # a head's rows together
    values = {
        "q_a_proj.weight": rows(w["w_dq"]), "q_a_layernorm.weight": w["q_norm.scale"], "q_b_proj.weight": rows(w["w_q"]),
        "kv_a_proj_with_mqa.weight": rows(w["w_c"], w["w_kr"]), "kv_a_layernorm.weight": w["c_norm.scale"],
        "kv_b_proj.weight": rows(kv), "o_proj.weight": w["w_o"].reshape(-1, 64).T,
    }  # fmt: skip
    layer.load_state_dict({n: torch.tensor(np.ascontiguousarray(a), dtype=torch.float32) for n, a in values.items()}, strict=True)
    causal = torch.full((T, T), -torch.inf).triu(1)[None, None]
    with torch.no_grad():
        x = torch.tensor(X)
        turns = DeepseekV3RotaryEmbedding(config)(x, torch.arange(T)[None])
        expected = layer(x, position_embeddings=turns, attention_mask=causal)[0].numpy()
    found = attention(jnp.asarray(X), PLACE, None, {}, "auto")[0]
    np.testing.assert_allclose(found, expected, atol=1e-5)
