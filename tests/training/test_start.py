"""A run that begins with another's weights has them, and is refused what does not fit."""

import shutil

import jax
import numpy as np
import pytest

from mnemax.errors import UserError
from mnemax.models.folder import open_model, save_model
from mnemax.models.params import init_params
from mnemax.training.trainer import train
from tests.training.runs import tiny_run

SMALL = ("stages[0].repeat=1", "layer.feedforward.width=32")
FIELDS = {
    "data": {"sequence_length": 24, "batch_size": 8},
    "evaluation": {"batches": 1, "samples": 0},
    "log": {"tensorboard": False},
}


@pytest.fixture
def source(tmp_path):
    """A model with full memory, as an import keeps it."""
    config = tiny_run("bounded_gate", (*SMALL, "layer.attention.memory.kind=full", "layer.attention.retention=null")).model
    params = init_params(config, jax.random.key(5))
    save_model(tmp_path / "source", config, params)
    return str(tmp_path / "source"), params


@pytest.mark.slow
def test_the_rest_of_the_model_is_the_sources_and_the_retention_learns(source, tmp_path):
    folder, params = source
    run = tiny_run("bounded_gate", SMALL, start_from=folder, objective={"kind": "distillation"}, steps=2, **FIELDS)
    train(run, tmp_path / "run")
    trained, fresh = open_model(tmp_path / "run").params, init_params(run.model, jax.random.key(run.seed))
    assert trained.keys() > params.keys()
    for name, value in trained.items():
        if name in params:
            assert np.array_equal(value, params[name]), name
        else:
            assert ".retention." in name
            assert 0 < np.abs(np.asarray(value) - np.asarray(fresh[name])).max() < 0.1, name
    shutil.rmtree(folder)  # what goes on does not begin again
    assert train(run.model_copy(update={"steps": 3}), tmp_path / "run", resume=True).step == 3


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (("layer.feedforward.width=40",), r"'stages.0.layers.0.feedforward.\w+' has shape .*32.* in .*source and .*40.* here"),
        (("tie_embeddings=false",), r"source lacks the weight 'unembedding', whose shape is \(64, 264\) here"),
        (("stages[0].repeat=3",), r"w_k' has shape \(1, 64, 2, 16\) in .*source and \(3, 64, 2, 16\) here"),
    ],
)
def test_what_does_not_fit(overrides, sentence, source, tmp_path):
    run = tiny_run("bounded_gate", (*SMALL, *overrides), start_from=source[0], **FIELDS)
    with pytest.raises(UserError, match=f"^start_from: .*{sentence}.$"):
        train(run, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_layers_are_not_dropped(source, tmp_path):
    config = open_model(tmp_path / "source").config
    two = config.model_copy(update={"stages": config.stages * 2})
    save_model(tmp_path / "two", two, init_params(two, jax.random.key(0)))
    with pytest.raises(UserError, match=r"two has the weight 'stages.1.+' of shape .+, for which there is no place here"):
        train(tiny_run("bounded_gate", SMALL, start_from=str(tmp_path / "two"), **FIELDS), tmp_path / "run")
    with pytest.raises(UserError, match="nowhere is not a run's folder"):
        train(tiny_run("bounded_gate", SMALL, start_from="nowhere", **FIELDS), tmp_path / "run")
