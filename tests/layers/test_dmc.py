"""Dynamic memory compression against a list of slots a head, in float64, and its soft form against the paper's mask."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mnemax.configs.load import load_model
from mnemax.configs.schema import ModelConfig
from mnemax.layers.memories import Place, Reader
from mnemax.layers.memories.dmc import DMC, DMCConfig
from mnemax.layers.param import Init
from mnemax.layers.projections.gqa import GQA, GQAConfig
from mnemax.layers.rotary import RotaryConfig
from mnemax.models.params import bind, init_params

B, T, K, H, THETA = 2, 19, 2, 4, 10.0
PROJECTION = GQAConfig(heads=2, kv_heads=K, head_width=H, rope=None)
LAYER = {"attention": {"projection": PROJECTION.model_dump()}, "feedforward": {"kind": "glu", "width": 8}}
MODEL = ModelConfig.model_validate({"width": 8, "vocab_size": 9, "dtype": "float32", "stages": [{"layers": [LAYER]}]})


@pytest.fixture(scope="module")
def problem():
    rng = np.random.default_rng(0)
    entry = {name: rng.standard_normal((B, T, K, H)) for name in "kv"}
    entry |= {"decision": rng.standard_normal((B, T, K)), "importance": rng.uniform(0.1, 1, (B, T, K))}
    return rng.standard_normal((B, T, K, H)), entry


def place(starts=(0,)) -> Place:
    start = np.maximum.accumulate([i if i in starts else 0 for i in range(T)])
    return Place(jnp.arange(T), jnp.asarray(np.tile(np.arange(T) - start, (B, 1))))


def read(config: DMCConfig, query, entry, where: Place, kind: GQAConfig = PROJECTION):
    projection = GQA(kind, MODEL, Init(MODEL, jax.random.key(0)), part="whole")
    entry = {name: jnp.asarray(leaf, jnp.float32) for name, leaf in entry.items()}
    query = jnp.asarray(query, jnp.float32)
    view = DMC(config).view(entry, where, Reader(query, projection, None, "auto"))
    return view.read(query, projection, where, "auto")[0]


def attention(query, slots):
    """softmax(q k / sqrt(H)) v over a list of (weight, weighted k, weighted v, what is left)."""
    k, v, left = (np.array(x) for x in zip(*((k / z, v / z, left) for z, k, v, left in slots), strict=True))
    p = np.exp(k @ query / H**0.5) * left
    return p @ v / p.sum()


@pytest.mark.parametrize("starts", [(0,), (0, 1, 8)])
@pytest.mark.parametrize(("least", "slack"), [(1, 0), (3, 2)])
def test_a_list_of_slots(problem, least, slack, starts):
    query, entry = problem
    config, where = DMCConfig(least=least, slack=slack), place(starts)
    out = read(config, query, entry, where)
    forced = 0
    for b in range(B):
        for h in range(K):
            for t in range(T):
                position = int(where.positions[b, t])
                slots = [] if position == 0 else slots
                k, v, w = entry["k"][b, t, h], entry["v"][b, t, h], entry["importance"][b, t, h]
                full = len(slots) >= 1 + slack + position // least
                if position and (entry["decision"][b, t, h] > 0 or full):
                    forced += not entry["decision"][b, t, h] > 0
                    z, ks, vs, left = slots.pop()
                    slots.append((z + w, ks + w * k, vs + w * v, left))
                else:
                    slots.append((w, w * k, w * v, 1.0))
                assert len(slots) <= config.slots(position + 1)
                np.testing.assert_allclose(out[b, t, h], attention(query[b, t, h], slots), atol=1e-5)
    assert (forced > 0) == (least > 1)


def turned(x, at: int):
    """A vector of H numbers rotated by its place, in pairs of half-split channels."""
    angle = at * THETA ** (-np.arange(0, H, 2) / H)
    first, second = x[: H // 2], x[H // 2 :]
    return np.concatenate([first * np.cos(angle) - second * np.sin(angle), second * np.cos(angle) + first * np.sin(angle)])


@pytest.mark.parametrize("rotated", [False, True], ids=["plain", "rotated when read"])
def test_the_gradient_is_that_of_the_soft_form(problem, rotated):
    """Soft: running means by soft decisions, each fading by the next token's; the cotangent is that of the hard outputs."""
    query, entry = problem
    kind = GQAConfig(heads=2, kv_heads=K, head_width=H, rope=RotaryConfig(theta=THETA), rotated="read") if rotated else PROJECTION
    turn = turned if rotated else lambda x, at: x
    out = read(DMCConfig(), query, entry, place(), kind)

    def weighed(decision) -> float:
        """<2 out, soft outputs>, whose derivative is that of the sum of squared outputs."""
        alpha, total = np.where(np.arange(T)[:, None] == 0, 0.0, 1 / (1 + np.exp(-decision))), 0.0
        for b in range(B):
            for h in range(K):
                slots = [(0.0, 0.0, 0.0, 1.0)]
                for t in range(T):
                    (z, k, v, _), a, w = slots[-1], alpha[b, t, h], entry["importance"][b, t, h]
                    slots[-1] = (z, k, v, 1 - a)
                    slots.append((a * z + w, a * k + w * entry["k"][b, t, h], a * v + w * entry["v"][b, t, h], 1.0))
                    seen = [(z, turn(k, j), v, left) for j, (z, k, v, left) in enumerate(slots[1:])]
                    total += 2 * np.asarray(out)[b, t, h] @ attention(turn(query[b, t, h], t), seen)
        return total

    def squares(decision):
        return jnp.sum(jnp.square(read(DMCConfig(), query, entry | {"decision": decision}, place(), kind)))

    direction = np.random.default_rng(1).standard_normal((B, T, K))
    found = jnp.sum(jax.grad(squares)(jnp.asarray(entry["decision"], jnp.float32)) * direction)
    ahead, behind = (weighed(entry["decision"] + sign * 1e-5 * direction) for sign in (1, -1))
    np.testing.assert_allclose(found, (ahead - behind) / 2e-5, rtol=1e-3)


def test_gradients_reach_weights_that_attention_uses():
    """key_driven deals queries to keys by the weights of the keys, inside of the attention."""
    config = load_model(
        "dmc", ["dtype=float32", "layer.attention.projection={kind: key_driven, heads: 4, kv_heads: 2, head_width: 16}"]
    )
    tokens = jnp.asarray(np.random.default_rng(0).integers(0, config.vocab_size, (2, 9)))
    params = init_params(config, jax.random.key(0))
    grads = jax.jit(jax.grad(lambda p: jnp.sum(jnp.square(bind(config, p)(tokens)[0]))))(params)
    assert all(np.isfinite(g).all() for g in grads.values())
    assert np.abs(grads["stages.0.layers.0.attention.projection.w_k"]).max() > 0
