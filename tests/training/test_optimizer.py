"""Schedules at known points; what each parameter group's update is made of."""

from typing import Any

import jax
import numpy as np
import optax
import pytest

from mnemax.configs.load import load_model
from mnemax.configs.schema import OptimizerConfig, ScheduleConfig
from mnemax.models.params import weights
from mnemax.training.optimizer import make_optimizer, make_schedule

WEIGHTS = weights(load_model("sink_logits"))  # untied, with biases and sinks
VECTORS = {name for name in WEIGHTS if "norm" in name or "b_" in name.rsplit(".")[-1] or name.endswith("sink")}
READOUT, EMBEDDING = {"unembedding"}, {"embedding"}
HIDDEN = WEIGHTS.keys() - VECTORS - READOUT - EMBEDDING


@pytest.mark.parametrize(
    ("schedule", "points"),
    [
        (ScheduleConfig(kind="cosine", warmup=10, final=0.1), {0: 0, 5: 0.5, 10: 1, 55: 0.55, 100: 0.1, 200: 0.1}),
        (ScheduleConfig(kind="linear", warmup=0.2, final=0.0), {0: 0, 10: 0.5, 20: 1, 60: 0.5, 100: 0}),
        (ScheduleConfig(kind="wsd", warmup=10, decay=0.2, final=0.1), {10: 1, 50: 1, 80: 1, 90: 0.55, 100: 0.1}),
        (ScheduleConfig(kind="cosine", warmup=0), {0: 1}),
        (ScheduleConfig(kind="wsd", warmup=0, decay=1.0, final=0.0), {0: 1, 50: 0.5, 100: 0}),
    ],
    ids=lambda value: value.kind if isinstance(value, ScheduleConfig) else "",
)
def test_schedules(schedule, points):
    rate = make_schedule(schedule, 2.0, 100)
    for step, expected in points.items():
        np.testing.assert_allclose(rate(step), 2 * expected, atol=1e-6, err_msg=str(step))


def first_update(gradients, **fields):
    """The first update and the parameters it is for; the learning rate is at its peak."""
    params = random_like(1)
    config = OptimizerConfig(schedule=ScheduleConfig(warmup=0), **fields)
    method = make_optimizer(config, 100, WEIGHTS)
    return jax.jit(lambda g, p: method.update(g, method.init(p), p)[0])(gradients, params), params


def random_like(seed, scale=1.0):
    rng = np.random.default_rng(seed)
    return {name: np.asarray(scale * rng.standard_normal(w.shape), np.float32) for name, w in WEIGHTS.items()}


def test_the_groups_are_all_there():
    assert len(VECTORS) >= 8
    assert any(name.endswith("sink") for name in VECTORS)
    assert all(name.rsplit(".")[-1].startswith("w_") for name in HIDDEN)


def test_adamw_decays_matrices_alone():
    updates, params = first_update(random_like(0, scale=0.0), peak_lr=0.5, weight_decay=0.1)
    for name, update in updates.items():
        expected = 0 * params[name] if name in VECTORS else -0.5 * 0.1 * params[name]
        np.testing.assert_allclose(update, expected, rtol=1e-5, err_msg=name)


def test_muon_decays_matrices_alone_each_at_its_rate():
    updates, params = first_update(random_like(0, scale=0.0), kind="muon", muon_lr=0.5, peak_lr=0.25, weight_decay=0.1)
    for name, update in updates.items():
        rate = 0.0 if name in VECTORS else 0.5 if name in HIDDEN else 0.25
        expected = -rate * 0.1 * params[name]
        np.testing.assert_allclose(update, expected, rtol=1e-5, err_msg=name)


def test_adamw_steps_by_the_learning_rate():
    gradients = random_like(0)
    updates, _ = first_update(gradients, peak_lr=0.5, weight_decay=0.0)
    for name, update in updates.items():
        np.testing.assert_allclose(update, -0.5 * np.sign(gradients[name]), rtol=1e-2, err_msg=name)


def test_muon_orthogonalises_each_layers_matrix():
    """Singular values of a hidden matrix's update, heads flattened against the width, are near one value but for the least."""
    gradients = random_like(0)
    updates, _ = first_update(gradients, kind="muon", muon_lr=0.5, peak_lr=0.25, weight_decay=0.0)
    for name in HIDDEN:
        weight = WEIGHTS[name]
        rows = np.prod(weight.shape[1 : 1 + weight.contract])
        assert weight.stacked
        for layer, gradient in zip(np.asarray(updates[name]), gradients[name], strict=True):
            before, after = (np.linalg.svd(x.reshape(rows, -1), compute_uv=False) for x in (gradient, layer))
            assert after.max() < 2 * np.quantile(after, 0.05), name
            assert before.max() > 3 * np.quantile(before, 0.05), name
    for name in WEIGHTS.keys() - HIDDEN:  # Adam's first step: the learning rate, by the sign
        np.testing.assert_allclose(updates[name], -0.25 * np.sign(gradients[name]), rtol=1e-2, err_msg=name)


@pytest.mark.parametrize("kind", ["adamw", "muon"])
@pytest.mark.parametrize(("field", "names"), [("hidden_lr", HIDDEN), ("embedding_lr", EMBEDDING), ("readout_lr", READOUT)])
def test_multipliers_act_on_their_group(kind, field, names):
    gradients = random_like(0)
    plain, _ = first_update(gradients, kind=kind)
    scaled, _ = first_update(gradients, kind=kind, **{field: 0.25})
    for name, update in scaled.items():
        np.testing.assert_allclose(update, (0.25 if name in names else 1) * plain[name], rtol=1e-5, err_msg=name)


def test_adamw_is_adamw():
    """Three steps against the published update rule, in float64, a parameter with decay and one without."""
    names = ["unembedding", "norm.scale"]
    config = OptimizerConfig(peak_lr=0.1, b1=0.8, b2=0.9, eps=1e-3, weight_decay=0.2, schedule=ScheduleConfig(warmup=0, final=1.0))
    method = make_optimizer(config, 100, WEIGHTS)
    params = random_like(1)

    @jax.jit
    def apply(gradients, state, params) -> tuple[Any, Any]:
        updates, state = method.update(gradients, state, params)
        return optax.apply_updates(params, updates), state

    expected = {name: params[name].astype(np.float64) for name in names}
    state = method.init(params)
    m, v = ({name: np.zeros(params[name].shape) for name in names} for _ in range(2))
    for step in range(1, 4):
        gradients = random_like(step)
        params, state = apply(gradients, state, params)
        for name in names:
            g = gradients[name].astype(np.float64)
            m[name], v[name] = 0.8 * m[name] + 0.2 * g, 0.9 * v[name] + 0.1 * g**2
            direction = (m[name] / (1 - 0.8**step)) / (np.sqrt(v[name] / (1 - 0.9**step)) + 1e-3)
            decay = 0.2 * expected[name] if name == "unembedding" else 0
            expected[name] = expected[name] - 0.1 * (direction + decay)
    for name in names:
        np.testing.assert_allclose(params[name], expected[name], rtol=1e-4, atol=1e-6)
