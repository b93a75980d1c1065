"""A run that is stopped, killed or damaged and then resumed gives the same losses bit for bit as one that nothing happened to."""

import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import pytest

from mnemax.configs import load
from mnemax.configs.load import load_model, load_run, shipped
from mnemax.configs.schema import RunConfig
from mnemax.errors import UserError
from mnemax.training import trainer
from mnemax.training.checkpoint import load_params
from mnemax.training.metrics import read

STEPS, STOPPED = 12, 7
FEW = {"cla": {"data": 2, "fsdp": 2, "tensor": 2}}
ALL = [
    pytest.param(name, FEW.get(name, {}), id=name, marks=[] if name in FEW else [pytest.mark.slow]) for name in shipped("models")
]


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory):
    """Compiled programs are shared by the runs, those of other processes included; gives the variable that says so to them."""
    folder = tmp_path_factory.mktemp("cache")
    options = {"jax_compilation_cache_dir": str(folder / "mnemax" / "jax"), "jax_persistent_cache_min_compile_time_secs": 0.2}
    before = {name: getattr(jax.config, name) for name in options}
    for name, value in options.items():
        jax.config.update(name, value)
    yield {"XDG_CACHE_HOME": str(folder)}
    for name, value in before.items():
        jax.config.update(name, value)


def run_config(model: str, mesh: dict, **fields) -> RunConfig:
    return RunConfig.model_validate(
        {
            "name": model,
            "steps": STEPS,
            "model": load_model(model),
            "data": {"sequence_length": 32, "batch_size": 8},
            "evaluation": {"every": 1000, "batches": 1, "samples": 0},
            "checkpoint": {"every": 4},
            "log": {"tensorboard": False},
            "mesh": mesh,
            **fields,
        }
    )


def records(folder: Path) -> list[dict]:
    return [record for record in read(folder / "metrics.jsonl") if record["split"] == "train"]


def train_until(run: RunConfig, folder: Path, step: int, monkeypatch: pytest.MonkeyPatch) -> trainer.Outcome:
    """Trains; SIGTERM comes while that step is computed."""
    make, done = trainer.make_train_step, []

    def interrupted(run):
        compute = make(run)

        def compute_and_stop(state, batch):
            done.append(batch)
            if len(done) == step:
                signal.raise_signal(signal.SIGTERM)
            return compute(state, batch)

        return compute_and_stop

    with monkeypatch.context() as patch:
        patch.setattr(trainer, "make_train_step", interrupted)
        return trainer.train(run, folder)


@pytest.mark.parametrize(("model", "mesh"), ALL)
def test_stopped_and_damaged_runs_resume_exactly(model, mesh, tmp_path, monkeypatch, capsys):
    run = run_config(model, mesh)
    trainer.train(run, tmp_path / "whole")
    whole = records(tmp_path / "whole")
    assert [record["step"] for record in whole] == list(range(1, STEPS + 1))

    outcome = train_until(run, tmp_path / "stopped", STOPPED, monkeypatch)
    assert (outcome.step, outcome.signal) == (STOPPED, signal.SIGTERM)
    assert records(tmp_path / "stopped") == whole[:STOPPED]
    shutil.copytree(tmp_path / "stopped", tmp_path / "damaged")

    assert trainer.train(run, tmp_path / "stopped", resume=True).step == STEPS
    assert records(tmp_path / "stopped") == whole

    capsys.readouterr()
    damage(tmp_path / "damaged" / "checkpoints" / str(STOPPED))
    trainer.train(run, tmp_path / "damaged", resume=True)
    assert records(tmp_path / "damaged") == whole
    said = " ".join(capsys.readouterr().out.split())
    assert f"checkpoint {STOPPED} cannot be read" in said
    assert "Resuming at step 4." in said


def test_a_damaged_last_checkpoint_is_written_again(tmp_path, monkeypatch):
    """The run that goes on from the one before it ends at the same step, where an unreadable one lies."""
    run = run_config("mqa", {})
    trainer.train(run, tmp_path / "run")
    whole, last = records(tmp_path / "run"), tmp_path / "run" / "checkpoints" / str(STEPS)
    damage(last)
    assert trainer.train(run, tmp_path / "run", resume=True).step == STEPS
    assert records(tmp_path / "run") == whole
    assert last.is_dir() and last.with_suffix(".unreadable").is_dir()
    assert load_params(tmp_path / "run", run.model)[1] == STEPS


def test_the_best_checkpoint_stays_after_resuming(tmp_path, monkeypatch):
    """Losses grow from the first validation on, in a run that is stopped and goes on."""
    losses = itertools.count(1.0)
    monkeypatch.setattr(trainer.Validation, "__call__", lambda self, params: {"loss": next(losses), "accuracy": 0.0})
    fields = {"evaluation": {"every": 2, "batches": 1, "samples": 0}, "checkpoint": {"every": 2, "keep_last": 1, "keep_best": 1}}
    run = run_config("mqa", {}, **fields)
    train_until(run, tmp_path / "run", 5, monkeypatch)
    trainer.train(run, tmp_path / "run", resume=True)
    kept = {path.name for path in (tmp_path / "run" / "checkpoints").iterdir() if path.name.isdigit()}
    assert kept == {"2", str(STEPS)}


def damage(checkpoint: Path) -> None:
    """Cuts every file of a checkpoint in half, and garbles what is left."""
    for path in checkpoint.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            path.write_bytes(bytes(255 - byte for byte in content[: len(content) // 2]))


def test_nothing_but_damaged_checkpoints_is_refused(tmp_path, monkeypatch):
    run = run_config("mqa", {})
    train_until(run, tmp_path / "run", 2, monkeypatch)
    damage(tmp_path / "run" / "checkpoints" / "2")
    with pytest.raises(UserError, match=r"run/checkpoints: checkpoint 2 cannot be read"):
        trainer.train(run, tmp_path / "run", resume=True)


def test_another_architecture_is_refused_by_its_fields(tmp_path):
    run = run_config("mqa", {})
    load.save(run, tmp_path / "config.yaml")
    layer = "model.stages[0].layers[0].attention.projection"
    other = load_run(str(tmp_path / "config.yaml"), ["model.width=32", f"{layer}.kv_heads=2"])
    with pytest.raises(UserError) as error:
        trainer.train(other, tmp_path, resume=True)
    assert "another architecture" in str(error.value)
    assert "model.width is 64 there and 32 here" in str(error.value)
    assert f"{layer}.kv_heads is 1 there and 2 here" in str(error.value)


def command(folder: Path, config: Path, *options: str) -> list[str]:
    start = "import sys; from mnemax.launch.cli import main; sys.exit(main())"
    return [sys.executable, "-c", start, "train", str(config), "--out", str(folder), *options]


def test_a_killed_process_resumes_exactly(tmp_path, cache):
    run = run_config("mqa", {}, steps=40)
    load.save(run, tmp_path / "run.yaml")
    trainer.train(run, tmp_path / "whole")
    kill(tmp_path / "killed", tmp_path / "run.yaml", cache, when=lambda: (tmp_path / "killed" / "checkpoints" / "8").exists())
    assert len(records(tmp_path / "killed")) < run.steps
    trainer.train(run, tmp_path / "killed", resume=True)
    assert records(tmp_path / "killed") == records(tmp_path / "whole")


def kill(folder: Path, config: Path, cache: dict[str, str], when, *options: str) -> None:
    """Starts a run as a user does, and kills it without warning at a moment."""
    with subprocess.Popen(command(folder, config, *options), env=os.environ | cache, stdout=subprocess.DEVNULL) as process:
        while not when() and process.poll() is None:
            time.sleep(0.02)
        process.kill()


@pytest.mark.slow
def test_killed_five_times_at_random_moments(tmp_path, cache):
    run = run_config("cla", {"data": 8}, steps=200)
    load.save(run, tmp_path / "run.yaml")
    whole, killed, rng = tmp_path / "whole", tmp_path / "killed", random.Random(0)
    run_whole(whole, tmp_path / "run.yaml", cache)
    for wanted in (rng.uniform(first, first + 40) for first in range(0, 200, 40)):
        options = ["--resume"] if (killed / "config.yaml").exists() else []
        kill(killed, tmp_path / "run.yaml", cache, lambda wanted=wanted: newest(killed) >= wanted, *options)
    run_whole(killed, tmp_path / "run.yaml", cache, "--resume")
    assert records(killed) == records(whole)
    assert len(records(killed)) == run.steps


def run_whole(folder: Path, config: Path, cache: dict[str, str], *options: str) -> None:
    subprocess.run(command(folder, config, *options), env=os.environ | cache, check=True, stdout=subprocess.DEVNULL)


def newest(folder: Path) -> int:
    """The step of the newest checkpoint, or of one that is being written."""
    return max((int(path.name.split(".")[0]) for path in (folder / "checkpoints").glob("[0-9]*")), default=0)
