"""Sharded over eight devices equals one device: losses of training steps, and logits of a prefill and a decode step after it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

from mnemax.configs.schema import OptimizerConfig, RunConfig, ScheduleConfig
from mnemax.launch.mesh import AXES, put_batch
from mnemax.models.params import bind, weights
from mnemax.sharding import named
from mnemax.training.optimizer import make_optimizer
from mnemax.training.step import Guard, TrainState, make_train_step

ROWS, LENGTH, STEPS = 8, 24, 3
MESHES = [
    pytest.param((2, 2, 2), AxisType.Explicit, id="2 data, 2 fsdp, 2 tensor"),
    pytest.param((8, 1, 1), AxisType.Explicit, id="8 data", marks=pytest.mark.slow),
    pytest.param((1, 4, 2), AxisType.Explicit, id="4 fsdp, 2 tensor", marks=pytest.mark.slow),
    pytest.param((2, 1, 4), AxisType.Explicit, id="2 data, 4 tensor", marks=pytest.mark.slow),  # more than key heads
    pytest.param((1, 1, 8), AxisType.Explicit, id="8 tensor", marks=pytest.mark.slow),  # more than query heads
    pytest.param((2, 2, 2), AxisType.Auto, id="2 data, 2 fsdp, 2 tensor, Auto", marks=pytest.mark.slow),
]


@pytest.fixture(scope="session")
def alone(architecture):
    """What one device gives."""
    return losses_and_logits(architecture, jax.make_mesh((1, 1, 1), AXES, devices=jax.devices()[:1]))


@pytest.mark.parametrize(("sizes", "kind"), MESHES)
def test_sharded_equals_one_device(architecture, alone, sizes, kind):
    losses, logits = losses_and_logits(architecture, jax.make_mesh(sizes, AXES, axis_types=(kind,) * 3))
    np.testing.assert_allclose(losses, alone[0], rtol=2e-5)
    for found, expected in zip(logits, alone[1], strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)


def losses_and_logits(architecture, mesh) -> tuple[list[float], list[np.ndarray]]:
    with jax.set_mesh(mesh):
        described = weights(architecture.config)
        params = {
            name: jax.device_put(value, named(mesh, described[name].axes, value.shape))
            for name, value in architecture.params.items()
        }
        return train(architecture, jax.tree.map(jnp.copy, params), mesh), decode(architecture, params, mesh)


def train(architecture, params, mesh) -> list[float]:
    """Mean losses of steps large enough that a wrong gradient shows in the next.

    `eps` is a clipped gradient's own size: without it, Adam takes the sign of gradients that are nothing but rounding.
    """
    optimizer = OptimizerConfig(peak_lr=3e-3, eps=1e-3, schedule=ScheduleConfig(warmup=0))
    run = RunConfig(
        name="sharded", steps=10, model=architecture.config, data=architecture.data(batch_size=ROWS), optimizer=optimizer
    )
    moments = jax.jit(make_optimizer(optimizer, run.steps, weights(run.model)).init)(params)
    state = TrainState(jnp.int32(0), params, moments, Guard(jnp.float32(0), jnp.int32(0), jnp.int32(0)))
    tokens = np.random.default_rng(0).integers(0, run.model.vocab_size, (ROWS, LENGTH + 1), np.int32)
    places = np.tile(np.r_[np.arange(9), np.arange(LENGTH - 9)].astype(np.int32), (ROWS, 1))
    counts = np.ones((ROWS, LENGTH), np.float32)
    rows = {"inputs": tokens[:, :-1], "targets": tokens[:, 1:], "positions": places, "weights": counts}
    step, batch, losses = make_train_step(run), put_batch(rows, mesh, 1), []
    for _ in range(STEPS):
        state, sums = step(state, batch)
        losses.append(float(sums["loss"] / sums["tokens"]))
    return losses


def decode(architecture, params, mesh) -> list[np.ndarray]:
    @jax.jit
    def prefill_and_step(params, tokens, places):
        model = bind(architecture.config, params)
        logits, state = model(tokens[:, :-1], places[:, :-1], model.init_state(ROWS, LENGTH))
        return logits, model(tokens[:, -1:], places[:, -1:], state)[0]

    tokens = np.random.default_rng(1).integers(0, architecture.config.vocab_size, (ROWS, LENGTH), np.int32)
    places = np.tile(np.arange(LENGTH, dtype=np.int32), (ROWS, 1))
    rows = put_batch({"tokens": tokens, "places": places}, mesh)
    return [np.asarray(x) for x in prefill_and_step(params, rows["tokens"], rows["places"])]
