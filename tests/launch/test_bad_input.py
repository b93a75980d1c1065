"""Every mistake ends in one sentence on stderr, exit code 2 and no traceback."""

import gzip
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from mnemax import registry
from mnemax.configs.load import load_model
from mnemax.errors import UserError
from tests.launch.conftest import Result

LAYER = "model.layer.attention"
FIRST = r"model.stages[0].layers[0].attention"


def refused(result: Result, *parts: str) -> None:
    assert result.code == 2, result
    assert result.err.startswith("mnemax: ")
    assert result.err.count("\n") == 1, result.err
    for part in parts:
        assert part in result.err


CONFIGURATION = {
    "misspelt at the top": ("stepz=3", "tiny.yaml: stepz: no such field; did you mean 'steps'? allowed: name, steps"),
    "misspelt section": ("optimiser.peak_lr=1", "optimiser: no such field; did you mean 'optimizer'?"),
    "misspelt in a section": ("optimizer.peek_lr=1", "optimizer.peek_lr: no such field; did you mean 'peak_lr'?"),
    "misspelt in a kind": (f"{LAYER}.projection.hedas=2", f"{FIRST}.projection.hedas: no such field; did you mean 'heads'?"),
    "misspelt in a source": ("data.sources=[{kind: text, pth: x}]", "data.sources[0].pth: no such field; did you mean 'path'?"),
    "misspelt in a source's place": ("data.sources[0].pth=x", "data.sources[0].pth: no such field; did you mean 'path'?"),
    "nothing like it": ("a.b.c=3", "a: no such field; allowed: name, steps"),
    "below the range": ("optimizer.peak_lr=-1", "optimizer.peak_lr: input should be greater than 0, got -1"),
    "above the range": ("optimizer.b1=2", "optimizer.b1: input should be less than or equal to 1, got 2"),
    "no steps": ("steps=0", "steps: input should be greater than or equal to 1, got 0"),
    "a word for a number": ("steps=ten", "steps: input should be a valid integer", "got 'ten'"),
    "half a step": ("steps=1.5", "steps: input should be a valid integer", "got 1.5"),
    "nothing for a number": ("steps=", "steps: input should be a valid integer, got None"),
    "a mapping for a number": ("steps.a=3", "steps: input should be a valid integer"),
    "a number for a mapping": ("data=3", "data: should be a mapping of fields, got 3"),
    "a number for a list": ("model.stages=3", "model.stages: should be a list, got 3"),
    "a number for layers": ("model.stages[0].layers=3", "model.stages[0].layers: should be a list, got 3"),
    "a number for the layer": ("model.layer=3", "model.layer: should be a mapping of fields, got 3"),
    "no stages": ("model.stages=[]", "model.stages: tuple should have at least 1 item"),
    "no sources": ("data.sources=[]", "data.sources: tuple should have at least 1 item"),
    "no attention": (f"{LAYER}=null", f"{FIRST}: should be a mapping of fields, got None"),
    "heads not divisible": (f"{LAYER}.projection={{heads: 3, kv_heads: 2}}", "heads (3) is not divisible by kv_heads (2)"),
    "odd rotation": (f"{LAYER}.projection.head_width=15", "head_width (15) is odd"),
    "a window of 0": (f"{LAYER}.memory={{kind: window, size: 0}}", f"{FIRST}.memory.size: input should be greater", "got 0"),
    "a window of no size": (f"{LAYER}.memory.kind=window", f"{FIRST}.memory.size: this field is required"),
    "a budget of 0": (f"{LAYER}.memory={{kind: bounded, budget: 0}}", f"{FIRST}.memory.budget: input should be greater", "got 0"),
    "a budget without a choice": (
        f"{LAYER}={{memory: {{kind: bounded, budget: 4, sinks: 2, recent: 2}}, retention: {{kind: h2o}}}}",
        f"{FIRST}.memory: budget (4) is below sinks + recent + 1 (5)",
    ),
    "a budget for nobody": (f"{LAYER}.memory={{kind: bounded, budget: 8}}", f"{FIRST}: memory bounded needs the gate 'retention'"),
    "a capacity of 0": (f"{LAYER}.retention={{kind: gate, capacity: 0}}", f"{FIRST}.retention.capacity: input should be", "got 0"),
    "a chunk longer than a row": (f"{LAYER}.memory={{kind: linear, chunk: 65}}", "chunk (65) exceeds model.max_length (64)"),
    "eviction from a recurrence": (
        f"{LAYER}={{memory: {{kind: linear}}, retention: {{kind: h2o}}}}",
        f"{FIRST}: retention h2o makes the gate 'retention', for which memory linear has no use",
    ),
    "a cap on no logits": (
        f"{LAYER}={{memory: {{kind: linear}}, projection: {{softcap: 30, rope: null}}}}",
        f"{FIRST}: memory linear has no logits, which projection.softcap would cap",
    ),
    "bits not offered": (f"{LAYER}.memory={{kind: quantized, keys: int3}}", f"{FIRST}.memory.keys: input should be", "got 'int3'"),
    "unknown memory": (f"{LAYER}.memory.kind=windwo", f"{FIRST}.memory: no kind 'windwo'; did you mean 'window'? allowed: "),
    "unknown source": ("data.sources[0].kind=jsnl", "data.sources[0]: no kind 'jsnl'; did you mean 'jsonl'?"),
    "no kind": ("data.sources=[{path: x}]", "data.sources[0]: needs a 'kind'"),
    "another dtype": ("model.dtype=float16", "model.dtype: input should be 'float32' or 'bfloat16', got 'float16'"),
    "unknown model": ("model=gema3", "'gema3' is neither a file nor a shipped configuration; did you mean 'gemma3'?"),
    "no such place": ("model.stages[5].repeat=2", "override model.stages[5].repeat: there is no such place"),
    "no value": ("steps", "'steps' is not an override: write dotted.field=value"),
    "no field": ("=3", "'=3' is not an override: write dotted.field=value"),
    "half a list": ("steps=[", "override steps: '[' is not a YAML value"),
    "half a mapping": ("data={a: b", "override data: '{a: b' is not a YAML value"),
    "another file": ("other.yaml", "'other.yaml' is not an override"),
    "rows too long": ("data.sequence_length=100", "data.sequence_length (100) exceeds model.max_length (64)"),
    "batch not divisible": ("training.accumulate=3", "data.batch_size (8) is not divisible by training.accumulate (3)"),
    "no devices on an axis": ("mesh.fsdp=0", "mesh: sizes (-1, 0, 1): each is at least 1, and one at most is -1"),
    "a name with a slash": ("name=a/b", "name: 'a/b' cannot name the run's folder"),
    "a name that leaves runs/": ("name=..", "name: '..' cannot name the run's folder"),
    "no name": ("name=", "name: input should be a valid string, got None"),
    # What is only known once devices, tokenizer and data are there:
    "batch and devices": ("data.batch_size=4", "(4 rows) does not divide by the 8 devices of mesh.data x mesh.fsdp"),
    "mesh and devices": ("mesh.data=3", "mesh.data=3, mesh.fsdp=1, mesh.tensor=1 do not multiply to the 8 devices there are"),
    "vocabulary": ("model.vocab_size=100", "The tokenizer (data.tokenizer) has 257 ids", "model.vocab_size to at least 257"),
    "tokenizer size": ("data.tokenizer={kind: embedded, vocab_size: 777}", "data.tokenizer.vocab_size is 777; the sizes shipped"),
    "tokenizer missing": ("data.tokenizer={kind: hf, path: tok}", "data.tokenizer.path: tok is neither a tokenizer.json"),
    "tokenizer damaged": ("data.tokenizer={kind: hf, path: text.txt}", "data.tokenizer: text.txt", "cannot be read"),
    "long sample prompt": (f"evaluation.sample_prompt={'x' * 70}", "evaluation.sample_prompt has 71 tokens", "max_length (64)"),
    "nobody to start from": ("start_from=nowhere", "nowhere is not a run's folder: it has no model.yaml"),
    "nothing held out": ("data.validation_fraction=0", "There is no held-out text", "data.validation_fraction"),
    "all held out": ("data.validation_fraction=1", "data.sources[0] (text.txt) has 0 tokens to train on"),
}  # fmt: skip


@pytest.mark.parametrize("name", CONFIGURATION)
def test_configuration(name, mnemax, folder):
    override, *parts = CONFIGURATION[name]
    refused(mnemax("train", "tiny.yaml", override), *parts)
    assert not (folder / "runs").exists()


FILES = {
    "unfinished": ("steps: 3\nmodel: {width: 3\n", "is not valid YAML", "line 2"),
    "a tab": ("\tsteps: 3", "is not valid YAML", "line 1"),
    "a field twice": ("steps: 3\nsteps: 4\n", "found duplicate key steps"),
    "an unknown reference": ("steps: ${nothing}\n", "Interpolation key 'nothing' not found"),
    "a list": ("- a\n", "holds list, not a mapping of fields"),
    "empty": ("", "config.yaml: steps: this field is required (also wrong: model"),
    "binary": (b"\x00\xff\xfe\x81", "is not valid YAML"),
    "its own base": ("base: config.yaml\n", "'base' leads back to itself"),
    "an unknown model": ("steps: 1\nmodel: gema3\n", "did you mean 'gemma3'?"),
    "code": ("steps: !!python/object:os.system x\n", "is not valid YAML"),
}


@pytest.mark.parametrize("name", FILES)
def test_files(name, mnemax, folder):
    content, *parts = FILES[name]
    (folder / "config.yaml").write_bytes(content if isinstance(content, bytes) else content.encode())
    refused(mnemax("train", "config.yaml"), *parts)


@pytest.mark.parametrize(
    ("model", "kind"), [("kvm", "kvm"), ("mamba2", "linear"), ("gated_deltanet", "delta"), ("based", "taylor")]
)
def test_chunks_that_no_row_fills(model, kind, mnemax):
    assert load_model(model).layers[0].attention.memory.kind == kind
    chunk = load_model(model).layers[0].attention.memory.chunk
    assert mnemax("describe", model, f"max_length={chunk}").code == 0
    refused(
        mnemax("describe", model, f"max_length={chunk - 1}"), f".memory: chunk ({chunk}) exceeds model.max_length ({chunk - 1})"
    )


@pytest.mark.parametrize("command", ["train", "describe"])
def test_unknown_names(command, mnemax):
    refused(mnemax(command, "defalt"), "'defalt' is neither a file nor a shipped configuration; did you mean 'default'?")
    refused(mnemax(command, "nowhere.yaml"), "'nowhere.yaml' is neither a file nor a shipped configuration; shipped experiments:")
    refused(mnemax(command, "."), "'.' is neither a file nor a shipped configuration")


ROWS = [json.dumps({"text": f"row {i} of many"}) for i in range(200)]
DATA = {
    "missing": ("text", None, "data.txt does not exist; data.sources[].path is a file, a glob or a folder"),
    "empty": ("text", b"", "data.txt is empty"),
    "binary": ("text", b"ab\x00\xff" * 100, "data.txt is a binary file"),
    "not UTF-8": ("text", "é".encode("latin-1") * 100, "data.txt is not UTF-8 text (byte 0)"),
    "too short": ("text", b"hi", "has 2 tokens to train on, fewer than one row of data.sequence_length (32)"),
    "malformed line": (
        "jsonl",
        "\n".join([*ROWS[:5], '{"text": bad', *ROWS]).encode(),
        "data.jsonl:6: malformed JSON",
        "--skip-bad",
    ),
    "another field": ("jsonl", "\n".join(ROWS).replace("text", "body").encode(), "data.jsonl:1: no field 'text' (it has 'body')"),
    "not an object": ("jsonl", b"[1]\n", "data.jsonl:1: a JSON list, where an object with the field 'text' should be"),
    "truncated gzip": ("jsonl.gz", gzip.compress("\n".join(ROWS).encode())[:200], "data.jsonl.gz cannot be read to its end"),
    "not gzip": ("jsonl.gz", b"plain text\n", "data.jsonl.gz cannot be read to its end"),
    "not Parquet": ("parquet", b"plain text\n" * 9, "data.parquet cannot be read"),
}


@pytest.mark.parametrize("name", DATA)
def test_data(name, mnemax, folder):
    suffix, content, *parts = DATA[name]
    path = folder / f"data.{'txt' if suffix == 'text' else suffix}"
    if content is not None:
        path.write_bytes(content)
    source = f"data.sources=[{{kind: {suffix.split('.')[0]}, path: {path.name}}}]"
    refused(mnemax("train", "tiny.yaml", source), *parts)
    assert not (folder / "runs").exists()
    if content is not None and name != "too short":
        refused(mnemax("data", "prepare", path.name, "out"), path.name)
        refused(mnemax("data", "train-tokenizer", path.name, "out"), path.name)
    assert not list(folder.glob("out*"))


def test_an_unprepared_folder(mnemax, folder):
    refused(mnemax("train", "tiny.yaml", "data.sources=[{kind: prepared, path: .}]"), "no readable index.json")
    assert mnemax("data", "prepare", "text.txt", "out", "--tokenizer", "embedded").code == 0
    refused(
        mnemax("train", "tiny.yaml", "data.sources=[{kind: prepared, path: out}]"), "prepared with another tokenizer (2048 ids)"
    )
    refused(mnemax("data", "prepare", "text.txt", "out"), "out exists and is not an empty folder")
    refused(mnemax("data", "train-tokenizer", "text.txt", "out"), "out exists and is not an empty folder")


@pytest.mark.parametrize("out", ["tiny.yaml/out", "/proc/out"])
def test_nowhere_to_write(out, mnemax, trained, folder):
    if not Path(out).parent.exists():
        pytest.skip(f"there is no {Path(out).parent}")
    assert mnemax("export", trained[0], "hf").code == 0
    for words in (
        ["train", "tiny.yaml", "--out", out],
        ["export", trained[0], out],
        ["import", "hf", out],
        ["data", "prepare", "text.txt", out],
        ["data", "train-tokenizer", "text.txt", out],
    ):
        refused(mnemax(*words), f"{out} cannot be written: ")


def test_nothing_is_overwritten(mnemax, trained, folder):
    refused(mnemax("train", "tiny.yaml", "--out", "."), "--out . exists and is not empty; add --resume")
    refused(mnemax("train", "tiny.yaml", "--out", "text.txt"), "--out text.txt exists")
    assert mnemax("export", trained[0], "hf").code == 0
    for out in (".", "text.txt"):
        refused(mnemax("export", trained[0], out), f"{out} is there already")
        refused(mnemax("import", "hf", out), f"{out} exists and is not an empty folder")


def test_resuming_what_is_not_there(mnemax):
    refused(mnemax("train", "tiny.yaml", "--resume"), "There is no run named 'tiny' in runs/ to resume")
    refused(mnemax("train", "tiny.yaml", "--resume", "--out", "nowhere"), "There is nothing to resume in nowhere")


RESUMED = {
    "architecture": (
        ["model.width=64", f"{LAYER}.projection.heads=4"],
        ["another architecture", "model.width is 32 there and 64 here", f"{FIRST}.projection.heads is 2 there and 4 here"],
    ),
    "depth": (["model.stages[0].repeat=3"], ["model.stages[0].repeat is 2 there and 3 here"]),
    "optimiser": (["optimizer.kind=muon"], ["optimizer.kind is 'adamw' there and 'muon' here"]),
    "seed": (["seed=1"], ["seed is 0 there and 1 here"]),
    "packing": (["data.packing=first_fit"], ["data.packing is 'concat' there and 'first_fit' here"]),
    "batch": (["data.batch_size=16"], ["data.batch_size is 8 there and 16 here"]),
    "rates": (["optimizer.hidden_lr=0.5"], ["hidden_lr, readout_lr) = 1 is True there and False here"]),
    "source": (["data.sources=[{kind: jsonl, path: x}]"], ["data.sources[0].kind is 'text' there and 'jsonl' here"]),
}


@pytest.mark.parametrize("name", RESUMED)
def test_resuming_another_run(name, mnemax, trained):
    overrides, parts = RESUMED[name]
    before = (trained[0] / "config.yaml").read_bytes()
    refused(mnemax("train", "tiny.yaml", *overrides, "--resume", "--out", trained[0]), "these fields differ: ", *parts)
    assert (trained[0] / "config.yaml").read_bytes() == before


def test_resuming_with_another_tokenizer(mnemax, trained):
    other = mnemax("train", "tiny.yaml", "data.tokenizer={kind: symbols, vocab_size: 64}", "--resume", "--out", trained[0])
    refused(other, "was trained with another tokenizer than data.tokenizer; its own is ")


def test_sample(mnemax, trained, folder):
    refused(mnemax("sample", trained[0], "--prompt", "hi", "--tokens", "100"), "A prompt of 3 tokens and 100 new ones", "(64)")
    refused(mnemax("sample", trained[0], "--prompt", "x" * 100, "--tokens", "1"), "model.max_length (64)")
    refused(mnemax("sample", "tiny.yaml"), "tiny.yaml is not a run's folder: it has no model.yaml")
    refused(mnemax("sample", "nowhere"), "nowhere is not a run's folder: it has no model.yaml")
    refused(mnemax("sample", trained[0], "--step", "3"), "has no checkpoint of step 3 (there: ")
    refused(mnemax("export", trained[0], "hf", "--step", "3"), "has no checkpoint of step 3 (there: ")


def test_measures_of_nothing(mnemax, trained, folder):
    for measure, words in {
        "{kind: language, source: {kind: mqar}}": "found no text to predict",
        "{kind: speed, new: 1}": "new: input should be greater than or equal to 2",
    }.items():
        (folder / "measure.yaml").write_text(measure)
        refused(mnemax("eval", trained[0], "--tasks", "measure.yaml"), words)


def test_an_index_of_another_tool(mnemax, folder):
    (folder / "shards").mkdir()
    (folder / "shards" / "index.json").write_text('{"version": 2}')
    refused(mnemax("train", "tiny.yaml", "data.sources=[{kind: prepared, path: shards}]"), "no readable index.json")


def test_measuring_another_model(mnemax, trained):
    refused(
        mnemax("eval", trained[0], "model.width=64"), "override model.width: a run is measured under other fields of its memories"
    )
    gate = f"{LAYER}={{memory: {{kind: bounded, budget: 8}}, retention: {{kind: gate, capacity: 8}}}}"
    refused(mnemax("eval", trained[0], gate), f"override {LAYER}: a run is measured under other fields of its memories")
    fields = (f"{LAYER}.memory={{kind: bounded, budget: 8}}", f"{LAYER}.retention={{kind: gate, capacity: 8}}")
    refused(
        mnemax("eval", trained[0], *fields),
        "change the model's weights: ",
        "lacks the weight 'stages.0.layers.0.attention.retention",
    )


def test_a_damaged_run(mnemax, trained, folder):
    shutil.copytree(trained[0], folder / "run")
    for path in (folder / "run" / "checkpoints").rglob("*"):
        if path.is_file():
            path.write_bytes(path.read_bytes()[:10])
    refused(mnemax("sample", "run"), "run/checkpoints: checkpoint", "cannot be read")
    refused(mnemax("train", "run", "steps=100", "--resume"), "run/checkpoints: checkpoint", "cannot be read")
    shutil.rmtree(folder / "run" / "checkpoints")
    refused(mnemax("sample", "run"), "run has no checkpoint (there: none)")
    (folder / "run" / "model.yaml").write_text("width: 3\n")
    refused(mnemax("sample", "run"), "run/model.yaml: vocab_size: this field is required")
    shutil.rmtree(folder / "run" / "tokenizer")


def test_a_tokenizer_without_a_start(mnemax, trained, folder):
    shutil.copytree(trained[0], folder / "run")
    tokenizer = folder / "run" / "tokenizer"
    spec = json.loads((tokenizer / "tokenizer.json").read_text())
    (tokenizer / "tokenizer.json").write_text(json.dumps(spec | {"added_tokens": [], "post_processor": None}))
    (tokenizer / "tokenizer_config.json").write_text("{}")
    refused(mnemax("sample", "run", "--tokens", "3"), "A prompt needs at least one token")
    config = "data.tokenizer={kind: hf, path: run/tokenizer}"
    refused(mnemax("train", "tiny.yaml", config), "evaluation.sample_prompt is empty, and data.tokenizer has no start token")
    shutil.rmtree(tokenizer)
    refused(mnemax("sample", "run"), "run has no tokenizer/")


TENSOR = "model.layers.0.mlp.down_proj.weight"


def change_tensors(change):
    def damage(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, folder / "model.safetensors")

    return damage


def change_config(**fields):
    def damage(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | fields))

    return damage


def truncate(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])


HF = {
    "missing tensor": (
        change_tensors(lambda t: t.pop(TENSOR)),
        f"lacks 1 of the 20 tensors that its config.json asks for: {TENSOR}",
    ),
    "extra tensor": (
        change_tensors(lambda t: t.update(more=np.zeros(3, np.float32))),
        "has 1 tensors that its config.json has no place",
    ),
    "shape": (
        change_tensors(lambda t: t.update({TENSOR: np.zeros((3, 4), np.float32)})),
        f"{TENSOR} has shape (3, 4); config.json",
    ),
    "truncated": (truncate, "model.safetensors is no whole safetensors file"),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), "has neither model.safetensors nor"),
    "unknown architecture": (change_config(architectures=["FooForCausalLM"], model_type="foo"), "'FooForCausalLM' is not known"),
    "half a config": (lambda folder: (folder / "config.json").write_text("{"), "config.json is no JSON"),
    "no config": (lambda folder: (folder / "config.json").unlink(), "has no config.json"),
    "no folder": (lambda folder: shutil.rmtree(folder), "is not a folder"),
}


@pytest.mark.parametrize("name", HF)
def test_hugging_face_folders(name, mnemax, trained, folder):
    damage, part = HF[name]
    assert mnemax("export", trained[0], "hf").code == 0
    damage(folder / "hf")
    refused(mnemax("import", "hf", "out"), "hf", part)
    assert not (folder / "out").exists()


@pytest.fixture
def small_disk(folder):
    """A disk of 1000 kB; a checkpoint of these runs takes 320 kB, and up to twice that while it is written."""
    disk = folder / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1000k", "tmpfs", disk], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip("mounting a small disk needs root")
    yield disk
    subprocess.run(["umount", "--lazy", disk], check=True)


def test_a_full_disk_leaves_the_checkpoint_before(mnemax, small_disk):
    words = ["train", "tiny.yaml", "--out", small_disk / "run", "log.tensorboard=false", "evaluation.samples=0"]
    result = mnemax(*words, "steps=400", "checkpoint.every=20", "checkpoint.keep_last=9", "log.every=20")
    refused(result, f"A checkpoint could not be written to {small_disk / 'run'} (No space left: it takes up to 644 kB, and ")
    assert "the last good checkpoint is of step 20." in result.err
    subprocess.run(["mount", "-o", "remount,size=8m", small_disk], check=True)
    result = mnemax(*words, "--resume", "steps=24")
    assert (result.code, "Resuming at step 20." in result.out) == (0, True)


def test_a_full_disk_for_every_other_command(mnemax, small_disk, trained):
    assert mnemax("export", trained[0], "hf").code == 0
    with (small_disk / "rest").open("wb") as file:
        file.write(bytes(1_000_000))
    sources = {"export": trained[0], "import": "hf", "data prepare": "text.txt", "data train-tokenizer": "text.txt"}
    for command, source in sources.items():
        refused(mnemax(*command.split(), source, small_disk / "out"), str(small_disk / "out"), "No space left")
        shutil.rmtree(small_disk / "out", ignore_errors=True)


PLUGINS = {
    "syntax": ("def f(:", "one.py, of MNEMAX_PLUGINS, cannot be imported: SyntaxError: "),
    "import": ("import nothing_of_the_sort", "one.py, of MNEMAX_PLUGINS, cannot be imported: ModuleNotFoundError: "),
    "error": ("raise RuntimeError('two\\nlines')", "one.py, of MNEMAX_PLUGINS, cannot be imported: RuntimeError: two lines."),
    "missing": (None, "MNEMAX_PLUGINS names plugins, which is not a folder."),
}


@pytest.mark.parametrize("name", PLUGINS)
def test_plugins_that_cannot_be_imported(name, folder, monkeypatch):
    content, part = PLUGINS[name]
    if content is not None:
        (folder / "plugins").mkdir()
        (folder / "plugins" / "one.py").write_text(content)
    monkeypatch.setenv("MNEMAX_PLUGINS", "plugins")
    with pytest.raises(UserError) as error:
        registry._import_plugins.__wrapped__()
    assert part in str(error.value)
    assert "\n" not in str(error.value)


def test_a_plugin_that_repeats_a_kind(folder):
    (folder / "again.py").write_text(
        "from typing import Literal\nfrom mnemax.layers.memories import MemoryConfig\n"
        "class Again(MemoryConfig):\n    kind: Literal['window'] = 'window'\n"
    )
    result = subprocess.run(
        [sys.executable, "-m", "mnemax", "describe", "llama"],
        env=os.environ | {"MNEMAX_PLUGINS": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    refused(Result(result.returncode, result.stdout, result.stderr), "The memory kind 'window' is defined twice", "again.py")


@pytest.mark.parametrize(
    "words",
    [
        "trane",
        "train --frobnicate",
        "train --resume=3",
        "train tiny.yaml --out",
        "sample",
        "sample run --temperature -1",
        "sample run --top-k 0",
        "sample run --top-p 2",
        "sample run --tokens 0",
        "sample run --dtype int8",
        "describe llama --context 0",
        "export run",
        "export run out --dtype int8",
        "import hf",
        "data",
        "data prepare text.txt",
        "data train-tokenizer text.txt out --vocab-size 20",
    ],
)
def test_options(words, mnemax):
    result = mnemax(*words.split())
    assert result.code == 2
    assert "Usage: mnemax" in result.out + result.err or "Error" in result.err
    assert "Traceback" not in result.err


def test_debug_shows_where(mnemax):
    with pytest.raises(UserError):
        mnemax("train", "nowhere.yaml", "--debug")
