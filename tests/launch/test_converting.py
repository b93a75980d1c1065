"""`mnemax convert`: a model of a smaller cache, which is measured, sampled from and trained on."""

import json
import re

import pytest

from mnemax.models.folder import open_model, read_config
from tests.launch.test_bad_input import refused

PROJECTION = "model.layer.attention.projection"
MLA = f"{PROJECTION}={{kind: mla, heads: 2, latent_width: 8, nope_width: 8, rope_width: 8, value_width: 16}}"
PAIR = "model.stages=[{layers: [{attention: {write: a}}, {attention: {read: a}}]}]"
QUICK = ["steps=2", "evaluation.samples=0", "log.tensorboard=false"]


def test_a_latent_and_its_training(mnemax, folder, trained):
    run, _ = trained
    result = mnemax("convert", run, MLA, "--out", "runs/latent", "--calibrate", "256")
    assert (result.code, result.err) == (0, "")
    assert re.search(r"decode bytes a token +256 +128\b", result.out)
    assert re.search(r"validation loss +\d\.\d+ +\d\.\d+", result.out)
    (command,) = re.findall(r"^to train on: mnemax (.*)$", result.out, re.MULTILINE)
    assert open_model(folder / "runs/latent").tokenizer is not None
    assert mnemax("sample", "runs/latent", "--tokens", "4").code == 0
    result = mnemax(*command.split(), *QUICK, "--out", "runs/on")
    assert (result.code, result.err) == (0, "")
    assert read_config(folder / "runs/on") == read_config(folder / "runs/latent")


def test_shared_layers_by_a_named_configuration(mnemax, folder, trained):
    result = mnemax("convert", trained[0], "--to", "tiny.yaml", PAIR, "--out", "runs/shared")
    assert (result.code, result.err) == (0, "")
    assert mnemax("eval", "runs/shared", "--tasks", "language.yaml").code == 2
    (folder / "language.yaml").write_text("{kind: language, tokens: 128, context: 32}")
    assert mnemax("eval", "runs/shared", "--tasks", "language.yaml").code == 0
    assert "language.yaml" in json.loads((folder / "runs/shared/evaluation.json").read_text())["tasks"]
    refused(mnemax("convert", "runs/shared", "--to", "tiny.yaml", "--out", "x"), "layer 1: it reads another layer's memory before")
    refused(mnemax("convert", "runs/shared", "--to", "runs/shared", "--out", "runs/shared"), "runs/shared exists")


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["--to", "mha"], ["cannot become mha: width is 32 before and 64 after."]),
        ([f"{PROJECTION}.heads=4"], ["cannot become this: layer 0: projection.heads is 2 before and 4 after."]),
        (["--to", "nothing"], ["'nothing' is neither a file nor a shipped configuration"]),
        ([f"{PROJECTION}.hedas=4"], ["no such field; did you mean 'heads'?"]),
    ],
)
def test_what_cannot_become(words, parts, mnemax, folder, trained):
    refused(mnemax("convert", trained[0], *words, "--out", "out"), *parts)
    assert not (folder / "out").exists()


def test_no_data_to_calibrate_with(mnemax, folder, trained):
    assert mnemax("convert", trained[0], "--out", "runs/same").code == 0
    refused(mnemax("convert", "runs/same", MLA, "--out", "out"), "runs/same names no data to calibrate with", "--calibrate 0")
    assert mnemax("convert", "runs/same", MLA, "--out", "out", "--calibrate", "0").code == 0
