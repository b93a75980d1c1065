"""Every parameter gets a finite, non-zero gradient, and a tiny model overfits one batch."""

import jax
import numpy as np
import optax

from mnemax.configs.schema import OptimizerConfig, RunConfig, ScheduleConfig, TrainingConfig
from mnemax.models.params import weights
from mnemax.training.step import init_state, make_train_step

STEPS = 100


def test_learning(architecture):
    run = RunConfig(
        name="overfit",
        steps=STEPS,
        model=architecture.config,
        data=architecture.data(batch_size=2),
        optimizer=OptimizerConfig(peak_lr=1e-2, schedule=ScheduleConfig(warmup=5), weight_decay=0.0),
        training=TrainingConfig(spike=None),
    )
    described = weights(architecture.config)
    state, step, batch = init_state(run), make_train_step(run), packed_batch(architecture)
    state, metrics = step(state, batch)
    gradients = optax.tree.get(state.optimizer, "mu")  # after one step: a multiple of them
    assert gradients.keys() == described.keys()
    for name, gradient in gradients.items():
        assert np.isfinite(gradient).all(), name
        layers = gradient if described[name].stacked else gradient[None]
        assert np.abs(layers).max(axis=tuple(range(1, layers.ndim))).min() > 0, name
    for _ in range(STEPS - 1):
        state, metrics = step(state, batch)
    assert metrics["loss"] / metrics["tokens"] < 0.1


def packed_batch(architecture):
    """One micro-batch of two rows, the second of two documents."""
    tokens = np.pad(architecture.tokens(), ((0, 0), (0, 1)))
    places = np.stack([np.arange(24), np.r_[np.arange(9), np.arange(15)]]).astype(np.int32)
    rows = {"inputs": tokens[:, :-1], "targets": tokens[:, 1:], "positions": places, "weights": np.ones((2, 24), np.float32)}
    return jax.tree.map(lambda a: a[None], rows)
