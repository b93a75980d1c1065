"""Every command, as a user runs it."""

import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mnemax.configs.load import shipped
from mnemax.errors import UserError
from mnemax.launch.runs import choose_folder
from mnemax.launch.sampling import prompt_ids, visible
from mnemax.models.folder import open_model
from mnemax.models.generate import Generator, Sampling
from mnemax.training.metrics import read
from tests.launch.conftest import LINES, STEPS

COMMANDS = ["train", "sample", "describe", "kinds", "export", "import", "data", "data prepare", "data train-tokenizer"]
QUICK = ["evaluation.samples=0", "log.tensorboard=false"]
SPEED = re.compile(r"\n\nprefill [\d.]+( [kM])? tokens/s · decode [\d.]+( [kM])? tokens/s · decode state [\d.]+ k?B\n$")


def test_alone_it_explains_itself(mnemax):
    result = mnemax()
    assert "Usage: mnemax" in result.out + result.err
    assert all(command.split()[0] in result.out + result.err for command in COMMANDS)


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help(command, mnemax):
    for option in ("--help", "-h"):
        result = mnemax(*command.split(), option)
        assert (result.code, result.err) == (0, "")
        assert f"Usage: mnemax {command}".strip() in result.out


def test_training_leaves_a_run_and_says_where(trained):
    folder, result = trained
    names = {path.name for path in folder.iterdir()}
    assert names >= {"config.yaml", "model.yaml", "environment.json", "metrics.jsonl", "samples.txt", "curves.png", "tokenizer"}
    assert [record["step"] for record in read(folder / "metrics.jsonl") if record["split"] == "train"] == [*range(1, STEPS + 1)]
    assert result.err == ""
    assert re.search(r"^tiny: [\d.]+ k parameters", result.out)
    assert re.search(rf"^step {STEPS}: loss \d.* bits/byte", result.out, re.MULTILINE)
    assert re.search(rf"^step {STEPS}: validation loss", result.out, re.MULTILINE)
    assert result.out.count("─ sample ─") == 2
    assert "curves in runs/tiny/curves.png" in result.out
    assert all(len(line) <= 80 for line in result.out.splitlines() if "runs/" not in line)


def test_event_files_hold_the_metrics(trained):
    from tensorboardX.proto import event_pb2

    (path,) = (trained[0] / "tensorboard").glob("events*")
    data, events = path.read_bytes(), []
    while data:  # a record: its length, a checksum, the event, a checksum
        (size,) = struct.unpack("<Q", data[:8])
        events.append(event_pb2.Event.FromString(data[12 : 12 + size]))
        data = data[16 + size :]
    loss = {event.step: value.simple_value for event in events for value in event.summary.value if value.tag == "train/loss"}
    records = [record for record in read(trained[0] / "metrics.jsonl") if record["split"] == "train"]
    assert loss == {record["step"]: pytest.approx(record["loss"], rel=1e-6) for record in records}


def test_runs_are_numbered_and_the_newest_is_resumed(mnemax, folder):
    for name in ("tiny", "tiny-2", "tiny-3"):
        assert mnemax("train", "tiny.yaml", "steps=1", *QUICK).code == 0
        assert (folder / "runs" / name / "config.yaml").exists()
    result = mnemax("train", "tiny.yaml", "steps=2", "--resume", *QUICK)
    assert "Resuming at step 1." in result.out
    assert len(read(folder / "runs" / "tiny-3" / "metrics.jsonl")) == 4  # two of training and two of validation
    assert mnemax("train", "runs/tiny-2", "steps=2", "--resume", *QUICK).code == 0
    assert (folder / "runs" / "tiny-2" / "checkpoints" / "2").exists()
    result = mnemax("train", "runs/tiny-2", "steps=2", "--resume", *QUICK)
    assert (result.code, "All 2 steps are done." in result.out) == (0, True)


def test_a_new_run_leaves_alone_what_lies_under_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    imported = tmp_path / "runs" / "w[64]"
    imported.mkdir(parents=True)
    assert choose_folder("w[64]", None, resume=False) == Path("runs/w[64]")
    (imported / "model.yaml").write_text("")
    assert choose_folder("w[64]", None, resume=False) == Path("runs/w[64]-2")
    with pytest.raises(UserError, match=r"There is no run named 'w\[64\]'"):
        choose_folder("w[64]", None, resume=True)


def test_out_name_and_overrides(mnemax, folder):
    wanted = ["model.layer.attention.memory={kind: window, size: 8}", "model.layer.attention.memory.sinks=1", "seed=7"]
    assert mnemax("train", "tiny.yaml", "name=2024-01-01", "steps=1", "--out", "a/b", *wanted, *QUICK).code == 0
    saved = (folder / "a" / "b" / "config.yaml").read_text()
    assert all(line in saved for line in ("name: '2024-01-01'", "kind: window", "size: 8", "sinks: 1", "seed: 7"))
    assert mnemax("sample", "a/b", "--tokens", "2").code == 0


def test_train_by_a_shipped_name(mnemax, folder):
    small = ["model.width=16", "data.sequence_length=16", "data.batch_size=8", "evaluation.batches=1", "steps=1"]
    source = ["data.sources[0].kind=text", "data.sources[0].path=text.txt"]
    assert mnemax("train", *small, *source, *QUICK).code == 0
    assert (folder / "runs" / "default" / "model.yaml").exists()


def test_a_model_by_name(mnemax):
    result = mnemax("describe", "tiny.yaml", "model=mqa", "model.width=16")
    assert "layers of width 16" in result.out
    assert "kv_heads=1" in result.out


def start(folder: Path, cache: Path, *words: str) -> subprocess.Popen[str]:
    script = Path(sys.executable).with_name("mnemax")
    environment = os.environ | {"XDG_CACHE_HOME": str(cache), "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(
        [script, *words], cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_signals_end_with_a_checkpoint(number, mnemax, folder, cache):
    with start(folder, cache, "train", "tiny.yaml", "steps=100000", "log.every=5", *QUICK) as process:
        assert process.stdout is not None
        while "step 5:" not in process.stdout.readline() and process.poll() is None:
            pass
        process.send_signal(number)
        said = process.stdout.read()
    assert process.returncode == 128 + number, said
    (stopped,) = re.findall(r"Stopped at step (\d+) of 100000; the same command with --resume continues it\.", said)
    assert "Traceback" not in said
    last = int(stopped) + 2
    result = mnemax("train", "tiny.yaml", f"steps={last}", "--resume", *QUICK)
    assert (result.code, f"Resuming at step {stopped}." in result.out) == (0, True)
    steps = [record["step"] for record in read(folder / "runs" / "tiny" / "metrics.jsonl") if record["split"] == "train"]
    assert steps == list(range(1, last + 1))


@pytest.mark.slow
def test_ctrl_c_while_sampling_is_quiet(trained, folder, cache):
    with start(folder, cache, "sample", str(trained[0]), "--tokens", "60", "--prompt", "a") as process:
        time.sleep(2)
        process.send_signal(signal.SIGINT)
        assert process.stdout is not None
        assert "Traceback" not in process.stdout.read()


def sampled(mnemax, run: Path, *prompts: str, options: tuple[str, ...] = ("--temperature", "0")) -> list[str]:
    """Each prompt with its continuation, greedy if not told otherwise."""
    words = [word for prompt in prompts for word in ("--prompt", prompt)]
    result = mnemax("sample", run, "--tokens", "12", *options, *words)
    assert (result.code, result.err) == (0, "")
    assert SPEED.search(result.out), result.out
    text = SPEED.sub("", result.out)
    return [text] if len(prompts) == 1 else [part.strip("\n") for part in text.strip("\n─").split("─" * 80)]


def test_a_ragged_batch_is_decoded_as_each_prompt_alone(mnemax, trained):
    prompts = ["T", "This is", "many lines.\nThis is a line of a text that"]
    together = sampled(mnemax, trained[0], *prompts)
    assert together == [sampled(mnemax, trained[0], prompt)[0] for prompt in prompts]
    assert all(text.startswith(prompt) and len(text) > len(prompt) for text, prompt in zip(together, prompts, strict=True))


def test_a_relative_path_and_an_empty_prompt(mnemax, trained, monkeypatch):
    monkeypatch.chdir(trained[0].parent.parent)
    assert mnemax("sample", "runs/tiny", "--tokens", "5", "--dtype", "bfloat16", "--top-k", "5", "--top-p", "0.9").code == 0


def test_a_stop_token_ends_its_row_alone(mnemax, trained, folder):
    shutil.copytree(trained[0], folder / "run")
    model = open_model(folder / "run")
    ids = [prompt_ids(model.tokenizer, prompt) for prompt in ("This is", "many lines")]
    first, second = Generator(model.config, model.params, Sampling(temperature=1)).generate(ids, 12, seed=3)
    stop = next(i for i, token in enumerate(first) if token not in second and token < 256)
    path = folder / "run" / "tokenizer" / "tokenizer_config.json"
    name = model.tokenizer.backend.id_to_token(first[stop])
    path.write_text(json.dumps(json.loads(path.read_text()) | {"eos_token": name}))
    texts = sampled(mnemax, folder / "run", "This is", "many lines", options=("--temperature", "1", "--seed", "3"))
    wanted = ["This is" + model.tokenizer.decode(first[:stop]), "many lines" + model.tokenizer.decode(second)]
    assert texts == [visible(text).strip("\n") for text in wanted]


def test_a_terminal_sees_no_control_characters():
    assert visible("a\x1b[2Jb\x9b\x07\r\n\tc") == "a�[2Jb���\n\tc"


@pytest.mark.parametrize("name", [*shipped("models"), *shipped("experiments")])
def test_describe(name, mnemax):
    result = mnemax("describe", name, "--context", "32")
    assert (result.code, result.err) == (0, "")
    assert re.search(rf"^{name}: [\d.]+ [kM] parameters, \d+ layers of width \d+\n", result.out)
    assert "decode state after 32 tokens" in result.out
    assert all(len(line) <= 80 for line in result.out.splitlines())
    assert "…" not in re.sub(r"\d, …, \d", "", result.out)


def test_describe_shows_what_stands_beside_projection_and_memory(mnemax):
    shown = mnemax("describe", "gated_output").out
    assert "k, v mixed with those of first" in shown and "output gate: one a head" in shown
    assert "kept by gate capacity=8" in mnemax("describe", "bounded_gate").out


def test_describe_with_overrides(mnemax, trained):
    assert "rope=none" in mnemax("describe", "llama", "model.layer.attention.projection.rope=null").out
    assert (
        "window size=4" in mnemax("describe", trained[0], "model.stages[0].layers[0].attention.memory={kind: window, size: 4}").out
    )


def test_kinds(mnemax):
    result = mnemax("kinds")
    assert (result.code, result.err) == (0, "")
    assert all(name in result.out for name in ("gqa", "window", "jsonl", "gemma3"))


def test_export_and_import_give_the_model_back(mnemax, trained, folder):
    assert mnemax("export", trained[0], "hf").code == 0
    assert {path.name for path in (folder / "hf").iterdir()} >= {"config.json", "model.safetensors", "tokenizer.json"}
    result = mnemax("import", "hf", "again")
    assert (result.code, "mnemax sample again" in result.out) == (0, True)
    prompts = ("This is", "line")
    assert sampled(mnemax, folder / "again", *prompts) == sampled(mnemax, trained[0], *prompts)
    assert mnemax("export", trained[0], "half", "--dtype", "bfloat16").code == 0


def test_an_import_is_described(mnemax, trained, folder):
    assert mnemax("export", trained[0], "exported").code == 0
    assert mnemax("import", "exported", "imported").code == 0
    described = mnemax("describe", "imported")
    assert described.code == 0 and "parameters" in described.out


def test_prepare_and_train_on_it(mnemax, folder):
    rows = [json.dumps({"text": line}) for line in LINES]
    (folder / "rows.jsonl").write_text("\n".join([*rows[:5], '{"text": bad', *rows[5:]]))
    assert mnemax("data", "train-tokenizer", "text.txt", "tok", "--vocab-size", "300").out.startswith("tok: ")
    result = mnemax("data", "prepare", "rows.jsonl", "text.txt", "out", "--tokenizer", "tok", "--skip-bad")
    assert result.out.startswith("out: 301 documents, ")
    assert re.fullmatch(r"mnemax: Skipped 1 bad items, the first: rows\.jsonl:6: malformed JSON.*\n", result.err)
    source = ["data.sources=[{kind: prepared, path: out}]", "data.tokenizer={kind: hf, path: tok}"]
    result = mnemax("train", "tiny.yaml", *source, "steps=1", "model.vocab_size=512", "log.tensorboard=false")
    assert (result.code, result.err) == (0, "")  # also where a sample holds ids that are padding of the vocabulary
    result = mnemax("train", "tiny.yaml", "data.sources=[{kind: jsonl, path: rows.jsonl}]", "--skip-bad", "steps=1", *QUICK)
    assert (result.code, "Skipped 1 bad items" in result.err) == (0, True)
