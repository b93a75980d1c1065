"""Accumulation, recomputation, clipping and the guard; compile size against depth."""

from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from mnemax.models.params import init_params
from mnemax.training.step import gradients, init_state, make_train_step
from tests.training.runs import make_batch, tiny_run


@cache
def plain_gradients():
    run = tiny_run()
    params = init_params(run.model, jax.random.key(0))
    return params, jax.jit(lambda params, batch: gradients(run, params, batch))(params, make_batch())


def assert_close(found, expected):
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-5 * np.abs(value).max(), err_msg=name)


@pytest.mark.parametrize("parts", [2, 4])
def test_accumulation_changes_nothing(parts):
    """Micro-batches with unequal numbers of counted tokens add up to the whole batch."""
    params, (grads, sums) = plain_gradients()
    run, batch = tiny_run(training={"accumulate": parts}), make_batch(parts)
    assert len(set(batch["weights"].sum((1, 2)))) > 1
    found, found_sums = jax.jit(lambda params, batch: gradients(run, params, batch))(params, batch)
    assert_close(found, grads)
    assert_close(found_sums, sums)


@pytest.mark.parametrize("remat", ["dots", "full"])
def test_recomputation_changes_nothing(remat):
    params, (grads, sums) = plain_gradients()
    run = tiny_run(training={"remat": remat})
    found, found_sums = jax.jit(lambda params, batch: gradients(run, params, batch))(params, make_batch())
    assert_close(found, grads)
    assert_close(found_sums, sums)


def test_gradient_is_that_of_the_mean_loss():
    """Along a random direction, the loss's finite difference."""
    params, (grads, _) = plain_gradients()
    run, rng, batch = tiny_run(), np.random.default_rng(0), jax.tree.map(jnp.asarray, make_batch())
    direction = {name: rng.standard_normal(p.shape).astype(np.float32) * np.float32(1e-4) for name, p in params.items()}
    loss = jax.jit(lambda params: gradients(run, params, batch)[1]["loss"])
    ahead, behind = (loss({name: p + sign * direction[name] for name, p in params.items()}) for sign in (1, -1))
    expected = sum(float(np.vdot(grads[name], direction[name])) for name in params)
    assert (ahead - behind) / 2 == pytest.approx(expected, rel=2e-2)


@pytest.fixture(scope="module")
def stepping():
    """A run, its compiled step, and a state some way into training."""
    run = tiny_run(optimizer={"peak_lr": 1e-2, "schedule": {"warmup": 0}}, training={"spike": 20.0})
    step, state = make_train_step(run), init_state(run)
    return lambda guard=None, at=0, batch=None: step(
        jax.tree.map(jnp.copy, replace(state, step=jnp.int32(at), guard=guard or state.guard)), batch or make_batch()
    ), state


def test_a_non_finite_gradient_is_skipped(stepping):
    step, before = stepping
    poisoned = make_batch()
    poisoned["weights"][0, 0, 0] = np.nan
    after, metrics = step(batch=poisoned)
    assert np.isnan(metrics["loss"])
    assert (metrics["skipped"], metrics["in_a_row"], after.step) == (1, 1, 1)
    unchanged = jax.tree.map(np.array_equal, (before.params, before.optimizer), (after.params, after.optimizer))
    assert all(jax.tree.leaves(unchanged))
    assert after.guard.mean_norm == before.guard.mean_norm

    after, metrics = step(guard=after.guard, at=1)
    assert (metrics["skipped"], metrics["in_a_row"]) == (1, 0)
    assert not np.array_equal(after.params["embedding"], before.params["embedding"])


def test_a_spike_is_skipped_once_norms_have_settled(stepping):
    step, before = stepping
    norm = step()[1]["grad_norm"]
    for at, usual, skipped in [(5, norm / 21, 0), (50, norm / 21, 1), (50, norm / 19, 0)]:
        _, metrics = step(guard=replace(before.guard, mean_norm=jnp.float32(usual)), at=at)
        assert metrics["skipped"] == skipped


def test_clipping_bounds_the_gradient():
    """Under plain moments (first step) Adam's mu is (1 - b1) times the gradient that it was given."""
    run = tiny_run(optimizer={"clip_norm": 0.01, "b1": 0.5})
    state, metrics = make_train_step(run)(init_state(run), make_batch())
    assert metrics["grad_norm"] > 0.01
    assert optax.tree.norm(optax.tree.get(state.optimizer, "mu")) / 0.5 == pytest.approx(0.01, rel=1e-4)


@pytest.mark.parametrize("model", ["cla", "gemma3"])
def test_program_size_does_not_grow_with_depth(model):
    def size(repeat):
        run = tiny_run(model, (f"stages.0.repeat={repeat}",))
        state = jax.eval_shape(lambda: init_state(run))
        return len(make_train_step(run).lower(state, make_batch()).as_text())

    assert size(32) < 1.02 * size(4)
