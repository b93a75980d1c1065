"""Retentions against plain numpy, and what the schema refuses of them."""

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mnemax.configs.load import load_model, load_run
from mnemax.errors import UserError
from mnemax.layers.memories import Place, Reader
from mnemax.layers.memories.bounded import Bounded, BoundedConfig
from mnemax.layers.param import Init
from mnemax.layers.retention.dynamic_mask import DynamicMask, DynamicMaskConfig
from mnemax.layers.retention.gate import Gate, GateConfig, capacity_loss
from mnemax.layers.retention.oracle import Oracle
from mnemax.layers.retention.snapkv import SnapKV
from mnemax.models.params import init_params
from mnemax.training.step import make_eval_step
from tests.layers.test_bounded import HEADS, KEYS, LENGTH, SCALE, STARTS, K, Plain, Q, V, call, empty


def attention(b: int, i: int, n: int) -> np.ndarray:
    """What the query i of row b pays to each token, nothing forgotten, summed over the queries of key head n. [T]."""
    seen = np.arange(STARTS[b, i], i + 1)
    total = np.zeros(LENGTH)
    for h in range(n * HEADS // KEYS, (n + 1) * HEADS // KEYS):
        p = np.exp(SCALE * K[b, seen, n] @ Q[b, i, h])
        total[seen] += p / p.sum()
    return total


def whole():
    place = Place(jnp.arange(LENGTH, dtype=jnp.int32), jnp.asarray(np.arange(LENGTH) - STARTS, jnp.int32))
    return {"k": jnp.asarray(K), "v": jnp.asarray(V)}, place


def test_oracle_knows_what_later_queries_pay():
    entry, place = whole()
    reader = Reader(jnp.asarray(Q), Plain(), Oracle(), "auto")
    found = Oracle().observe(entry, place, reader)["retention"]
    for b, n in np.ndindex(2, KEYS):
        paid = np.stack([attention(b, i, n) for i in range(LENGTH)])
        np.testing.assert_allclose(found[b, :, n], (paid - np.diag(np.diag(paid))).sum(0), rtol=1e-4, atol=1e-5)


def test_oracle_does_not_decode():
    memory = Bounded(BoundedConfig(budget=6))
    with pytest.raises(UserError, match="sees the future"):
        call(memory, Oracle(), empty(memory))


@pytest.mark.parametrize("pool", [1, 5])
def test_snapkv_keeps_what_the_end_of_the_prompt_attends_to(pool):
    budget, window = 12, 6
    memory, policy = Bounded(BoundedConfig(budget=budget, recent=window)), SnapKV(window, pool)
    state, _, out = call(memory, policy, empty(memory))
    np.testing.assert_allclose(out, call(Bounded(BoundedConfig(budget=LENGTH)), policy)[2], rtol=1e-5, atol=1e-6)  # all is read
    for b, n in np.ndindex(2, KEYS):
        mean = np.mean([attention(b, i, n) for i in range(LENGTH - window, LENGTH)], axis=0)
        mean = np.convolve(mean, np.ones(pool) / pool, mode="same")
        earlier = np.arange(STARTS[b, -1], LENGTH - window)
        best = earlier[np.argsort(-mean[earlier])[: budget - window]]
        kept = sorted([*best, *range(LENGTH - window, LENGTH)])
        assert sorted(np.asarray(state["index"])[b, :, n].tolist()) == kept


def test_dynamic_mask_keeps_the_top_of_every_prefix():
    """As if nothing were evicted and each query took the top W of its prefix anew: by delta, and by recency where deltas tie."""
    rng, W, T = np.random.default_rng(1), 7, 200
    delta = rng.integers(0, 12, (2, T, KEYS)).astype(np.float32)  # many ties
    place = Place(jnp.arange(T, dtype=jnp.int32), jnp.tile(jnp.arange(T, dtype=jnp.int32), (2, 1)))
    wide = jnp.zeros((2, T, KEYS, 4))
    entry = {"k": wide, "v": wide, "retention": jnp.asarray(delta)}
    retention = DynamicMask(DynamicMaskConfig(), (KEYS, 4), init(16))
    memory = Bounded(BoundedConfig(budget=W, recent=0))
    view = memory.view(entry, place, Reader(jnp.zeros((2, T, HEADS, 4)), Plain(), retention, "auto"))
    kept = np.asarray(view.evict_at)
    state = memory.init(2, T, {name: jax.ShapeDtypeStruct(leaf.shape[2:], leaf.dtype) for name, leaf in entry.items()})
    reader = Reader(jnp.zeros((2, 1, HEADS, 4)), Plain(), retention, "auto")
    update = jax.jit(lambda state, entry, place: memory.update(state, entry, place, reader)[0])
    for i in range(T):
        one = jax.tree.map(lambda leaf, i=i: leaf[:, i : i + 1], entry)
        state = update(state, one, Place(place.index[i : i + 1], place.positions[:, i : i + 1]))
        for b, n in np.ndindex(2, KEYS):
            top = sorted(sorted(range(i + 1), key=lambda j, b=b, n=n: (delta[b, j, n], j))[-W:])
            index = np.asarray(state["index"])[b, :, n]
            assert sorted(index[index >= 0].tolist()) == top
            assert [j for j in range(i + 1) if kept[b, j, n] > i] == top


def init(width: int) -> Init:
    config = load_model("bounded_gate", [f"width={width}"])
    return Init(config, jax.random.key(0))


def test_dynamic_mask_formula():
    retention = DynamicMask(DynamicMaskConfig(amplitude=0.3), (KEYS, V.shape[-1]), init(16))
    entry, place = whole()
    u = np.einsum("btkh,khn->btn", V, np.asarray(retention.w[...]))
    found = retention(jnp.zeros((2, LENGTH, 1)), entry, place)["retention"]
    np.testing.assert_allclose(found, 0.3 * np.log1p(np.exp(u)), rtol=1e-5, atol=1e-6)
    assert retention.bias({"retention": found}) is found


@pytest.mark.parametrize("length", [40, 300])
def test_capacity_loss(length):
    rng = np.random.default_rng(2)
    starts = np.stack([np.zeros(length, int), np.where(np.arange(length) < 13, 0, 13)])
    place = Place(jnp.arange(length, dtype=jnp.int32), jnp.asarray(np.arange(length) - starts, jnp.int32))
    log_beta = -np.exp(rng.standard_normal((2, length, KEYS)) - 3).astype(np.float32)
    total = 0.0
    for b, t in np.ndindex(2, length):
        document = np.arange(starts[b, t], t + 1)
        left = np.exp((t - document)[:, None] * log_beta[b, document].astype(np.float64)).sum(0)
        total += np.maximum(left - 5, 0).sum() / (t - starts[b, t] + 1)
    loss, gradient = jax.jit(jax.value_and_grad(lambda x: capacity_loss(x, place, 5)))(jnp.asarray(log_beta))
    np.testing.assert_allclose(loss, total / log_beta.size, rtol=1e-5)
    assert np.isfinite(gradient).all()
    assert (gradient >= 0).all()  # more kept is never cheaper


def test_a_gate_that_forgets_nothing_is_full_attention():
    config = load_model("bounded_gate")
    gate = Gate(GateConfig(capacity=8, bias=1000.0, hidden=4), config, KEYS, init(16))
    entry, place = whole()
    x = jnp.ones((2, LENGTH, config.width))
    entry |= gate(x, entry, place)
    reader = Reader(jnp.asarray(Q), Plain(), gate, "auto")
    view = Bounded(BoundedConfig(budget=LENGTH)).view(entry, place, reader)
    found, _ = view.read(reader.query, reader.projection, place, "auto")
    expected = call(Bounded(BoundedConfig(budget=LENGTH)), SnapKV(4, 1))[2]  # a prompt is read in full
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    plain = Gate(GateConfig(capacity=8, fades=False), config, KEYS, init(16))
    assert plain.slope(entry) is None


def test_the_capacity_loss_joins_the_objective():
    run = load_run(
        "default", ["model=bounded_gate", "model.stages[0].repeat=1", "data.sequence_length=24", "data.batch_size=2", "steps=2"]
    )
    tokens = np.random.default_rng(0).integers(0, 264, (2, 25), np.int32)
    places, ones = np.tile(np.arange(24, dtype=np.int32), (2, 1)), np.ones((2, 24), np.float32)
    rows = {"inputs": tokens[..., :-1], "targets": tokens[..., 1:], "positions": places, "weights": ones}
    sums = make_eval_step(run)(init_params(run.model, jax.random.key(0)), rows)
    assert sums["capacity"] > 0
    others = sums["nll"] + run.training.z_loss * sums["z"]
    np.testing.assert_allclose(sums["loss"], others + sums["capacity"], rtol=1e-5)


ATTENTION = "layer.attention"
REFUSED = {
    "no room": ([f"{ATTENTION}.memory.budget=3"], "budget (3) is below sinks + recent + 1 (4)"),
    "no slots": ([f"{ATTENTION}.memory.budget=0"], "greater than or equal to 1"),
    "a memory that keeps all": ([f"{ATTENTION}.memory={{kind: full}}"], "retention key_norm makes the gate 'retention'"),
    "a memory that chooses by age": ([f"{ATTENTION}.memory={{kind: window, size: 4}}"], "window has no use"),
    "nobody who ranks": ([f"{ATTENTION}.retention=null"], "memory bounded needs the gate 'retention'"),
    "one that does not rank": ([f"{ATTENTION}.retention={{kind: merge_gate}}"], "makes the gate 'merge'"),
    "a capacity of 0": ([f"{ATTENTION}.retention={{kind: gate, capacity: 0}}"], "greater than or equal to 1"),
    "no capacity": ([f"{ATTENTION}.retention={{kind: gate}}"], "capacity: this field is required"),
}


@pytest.mark.parametrize(("overrides", "says"), REFUSED.values(), ids=REFUSED)
def test_refused(overrides, says):
    with pytest.raises(UserError) as error:
        load_model("bounded_key_norm", overrides)
    assert says in str(error.value)


def test_a_projection_without_key_heads_is_refused():
    attention: Any = SimpleNamespace(projection=SimpleNamespace(kind="latent"), retention=GateConfig(capacity=4))
    assert "projection latent writes none" in str(BoundedConfig(budget=4).refuses(attention))


def test_snapkv_drops_the_decoded_before_the_prompt():
    """A decoded token stays while it is recent; then it goes, and the prompt's choice stays."""
    memory, policy = Bounded(BoundedConfig(budget=8, recent=2)), SnapKV(4, 1)
    state, _, _ = call(memory, policy, empty(memory), 0, 30)
    chosen = np.asarray(state["index"])
    for i in range(30, LENGTH):
        state, _, _ = call(memory, policy, state, i, 1)
    kept = np.asarray(state["index"])
    for b, n in np.ndindex(2, KEYS):
        assert {LENGTH - 2, LENGTH - 1} <= set(kept[b, :, n].tolist())
        assert set(kept[b, :, n].tolist()) - {LENGTH - 2, LENGTH - 1} <= set(chosen[b, :, n].tolist())


def test_a_decoded_token_reads_no_more_than_the_budget_with_snapkv():
    memory, policy = Bounded(BoundedConfig(budget=8, recent=2)), SnapKV(4, 1)
    state, _, _ = call(memory, policy, empty(memory), 0, 30)
    state, _, out = call(memory, policy, state, 30, 1)
    for b, h in np.ndindex(2, HEADS):
        n = h * KEYS // HEADS
        kept = np.asarray(state["index"])[b, :, n]
        kept = kept[kept >= STARTS[b, 30]]
        p = np.exp(SCALE * K[b, kept, n] @ Q[b, 30, h])
        np.testing.assert_allclose(out[b, 0, h], p @ V[b, kept, n] / p.sum(), rtol=1e-4, atol=1e-5)
