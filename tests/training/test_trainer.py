"""What the loop refuses."""

import json

import pytest

from mnemax.errors import UserError
from mnemax.training import step, trainer
from mnemax.training.checkpoint import save_environment
from tests.training.runs import tiny_run


def test_too_many_skipped_updates_stop_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(step, "NORM_SETTLES", 0)  # the running mean begins at 0, above which every norm is a spike
    run = tiny_run(
        training={"max_skipped": 2}, data={"sequence_length": 24, "batch_size": 8}, log={"every": 1, "tensorboard": False}
    )
    sentence = r"Training stopped at step 3: 3 updates in a row were skipped .*training.max_skipped is 2.*optimizer.peak_lr"
    with pytest.raises(UserError, match=sentence):
        trainer.train(run, tmp_path)


def test_a_streak_of_skipped_updates_is_seen_between_two_lines_of_the_log(tmp_path, monkeypatch):
    monkeypatch.setattr(step, "NORM_SETTLES", 0)
    run = tiny_run(
        training={"max_skipped": 2}, data={"sequence_length": 24, "batch_size": 8}, log={"every": 100, "tensorboard": False}
    )
    with pytest.raises(UserError, match=r"Training stopped at step 3: 3 updates in a row"):
        trainer.train(run, tmp_path)


def test_git_is_not_needed(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "")
    save_environment(tmp_path / "environment.json")
    assert json.loads((tmp_path / "environment.json").read_text())["git"] is None


@pytest.mark.parametrize(("mesh", "rows", "sentence"), [
    ({"data": 3}, 8, r"mesh.data=3, mesh.fsdp=1, mesh.tensor=1 do not multiply to the 8 devices"),
    ({"data": -1, "tensor": 3}, 8, r"do not multiply to the 8 devices"),
    ({}, 4, r"\(4 rows\) .* the 8 devices of mesh.data x mesh.fsdp"),
])  # fmt: skip
def test_meshes_that_do_not_fit(mesh, rows, sentence, tmp_path):
    run = tiny_run(data={"sequence_length": 24, "batch_size": rows}, mesh=mesh)
    with pytest.raises(UserError, match=sentence):
        trainer.train(run, tmp_path)


def test_a_vocabulary_too_small_for_the_tokenizer(tmp_path):
    with pytest.raises(UserError, match="vocab_size"):
        trainer.train(tiny_run(overrides=("vocab_size=200",)), tmp_path)
