"""The distillation of a retention: its divergence against plain log_softmax, and what it moves."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mnemax.configs.load import load_model
from mnemax.configs.schema import OptimizerConfig, RunConfig, ScheduleConfig, TrainingConfig
from mnemax.errors import UserError
from mnemax.training.divergence import divergence
from mnemax.training.objectives.distillation import DistillationConfig, without_retentions
from mnemax.training.step import init_state, make_train_step
from tests.training.test_cross_entropy import inputs


@pytest.mark.parametrize("chunk", [1, 4, 512])
@pytest.mark.parametrize("softcap", [None, 3.0])
def test_divergence(chunk, softcap):
    x, matrix, _, weights = inputs()
    other = jnp.roll(x, 1, axis=1)

    def plain(teacher, student):
        logits = [1.3 * (side @ matrix) for side in (teacher, student)]
        p, q = (jax.nn.log_softmax(z if softcap is None else softcap * jnp.tanh(z / softcap)) for z in logits)
        return jnp.sum(weights[..., None] * jnp.exp(p) * (p - q))

    def chunked(teacher, student):
        return divergence(teacher, student, matrix, weights, scale=1.3, softcap=softcap, chunk=chunk)

    found, expected = (jax.value_and_grad(function, argnums=1)(x, other) for function in (chunked, plain))
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-5)
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(chunked(x, x), 0, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "left"), [("adamw", 0.7), ("muon", 0.9)])
def test_only_retentions_move_and_the_model_learns_to_forget(kind, left):
    model = load_model("bounded_gate", ["dtype=float32", "stages[0].repeat=1"])
    run = RunConfig(
        name="distil",
        steps=30,
        model=model,
        data={"sequence_length": 24, "batch_size": 2},
        objective=DistillationConfig(),
        optimizer=OptimizerConfig(kind=kind, peak_lr=1e-2, schedule=ScheduleConfig(warmup=0), weight_decay=0.1, hidden_lr=0.9),
        training=TrainingConfig(spike=None),
    )
    tokens = np.random.default_rng(0).integers(0, model.vocab_size, (1, 2, 25), np.int32)
    places, ones = np.tile(np.arange(24, dtype=np.int32), (1, 2, 1)), np.ones((1, 2, 24), np.float32)
    rows = {"inputs": tokens[..., :-1], "targets": tokens[..., 1:], "positions": places, "weights": ones}
    state, step, records = init_state(run), make_train_step(run), []
    before = jax.tree.map(np.array, state.params)
    for _ in range(run.steps):
        state, sums = step(state, rows)
        records.append(jax.device_get(sums))
    for name, value in state.params.items():
        assert np.array_equal(value, before[name]) == (".retention." not in name), name
    assert records[0]["divergence"] > 0
    assert records[-1]["capacity"] < left * records[0]["capacity"]
    assert records[-1]["loss"] < records[0]["loss"]


def test_the_teacher_has_no_retention():
    config = load_model("bounded_key_norm", ["layer.attention.memory.budget=64"])
    assert without_retentions(config).layers[0].attention.retention is None
    with pytest.raises(UserError, match="no layer of the model has one that ranks tokens"):
        without_retentions(load_model("window"))
