"""A run measured under another memory: the same weights, a file of its own, and nothing that would change a weight."""

import json

import jax
import pytest

from mnemax.configs.load import load_model
from mnemax.errors import UserError
from mnemax.evaluation.evaluate import check_overrides, evaluate, results_file
from mnemax.models.folder import open_model, save_model
from mnemax.models.params import bind, init_params

TASKS = "kind: recall\nexamples: 16\ntasks: [{kind: mqar, vocab_size: 64, length: 32, pairs: 4}]\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved") / "run"
    config = load_model("bounded_gate", ["layer.feedforward.width=32", "stages=[{repeat: 2}, {layers: [{}, {}]}]"])
    save_model(folder, config, init_params(config, jax.random.key(0)))
    return folder


def test_an_override_of_layer_reaches_every_layer_of_a_saved_model(folder):
    overrides = ["layer.attention.memory.budget=5", "model.layer.attention.retention.fades=false"]
    layers = load_model(str(folder / "model.yaml"), [*overrides, "stages[1].layers[0].attention.memory.sinks=0"]).layers
    assert [layer.attention.memory.budget for layer in layers] == [5] * 4
    assert not any(layer.attention.retention.fades for layer in layers)
    assert [layer.attention.memory.sinks for layer in layers] == [1, 1, 0, 1]
    window = ["layer.attention.memory.kind=window", "layer.attention.memory.size=3", "layer.attention.retention=null"]
    kinds = load_model(str(folder / "model.yaml"), window).layers
    assert {layer.attention.memory.size for layer in kinds} == {3}


@pytest.mark.slow
def test_results_of_another_memory_have_their_own_file(folder):
    measure = folder.parent / "mqar.yaml"
    measure.write_text(TASKS)
    evaluate(folder, [str(measure)], 8)
    before = (folder / "evaluation.json").read_bytes()
    overrides = ["layer.attention.retention=null", "layer.attention.memory={kind: full}"]
    evaluate(folder, [str(measure)], 8, overrides=overrides)
    assert (folder / "evaluation.json").read_bytes() == before
    (other,) = folder.glob("evaluation-*.json")
    found, own = json.loads(other.read_text()), json.loads(before)
    assert found["overrides"] == overrides
    assert own["overrides"] == []
    assert found["model"]["state_bytes"] != own["model"]["state_bytes"]
    # What was measured is full memory with the run's weights.
    whole = load_model(str(folder / "model.yaml"), overrides)
    tokens = jax.random.randint(jax.random.key(1), (1, 20), 0, 264)
    logits = lambda config, params: jax.jit(lambda params: bind(config, params)(tokens)[0])(params)  # noqa: E731
    model, own = open_model(folder, overrides), open_model(folder)
    assert (logits(model.config, model.params) == logits(whole, own.params)).all()
    assert (logits(model.config, model.params) != logits(own.config, own.params)).any()


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("layer.feedforward.width=8", "override layer.feedforward.width: a run is measured under other fields of its memories and"),
        ("width=8", "override width: a run is measured"),
        ("layer.attention.memory_of_it=8", "override layer.attention.memory_of_it: a run is measured"),
        (
            "layer.attention.retention.hidden=8",
            "change the model's weights: the weight .*retention.b_1' has shape .2, 32. in .*run",
        ),
        ("layer.attention.retention.capacity=0", "capacity: input should be greater than or equal to 1, got 0"),
        ("layer.attention.retention", "'layer.attention.retention' is not an override"),
    ],
)
def test_what_is_refused(override, sentence, folder):
    with pytest.raises(UserError, match=sentence):
        check_overrides(folder, [override])


def test_weights_that_nobody_trained_are_refused(tmp_path):
    config = load_model("window")
    save_model(tmp_path / "run", config, init_params(config, jax.random.key(0)))
    overrides = ["layer.attention.memory={kind: bounded, budget: 8}", "layer.attention.retention={kind: gate, capacity: 8}"]
    with pytest.raises(UserError, match=r"run lacks the weight 'stages.*retention\..*', whose shape is"):
        check_overrides(tmp_path / "run", overrides)
    check_overrides(tmp_path / "run", [overrides[0], "layer.attention.retention={kind: h2o}"])


def test_a_file_tells_its_overrides():
    assert results_file([]) == "evaluation.json"
    plain = results_file(["model.layer.attention.memory.budget=64", "stages[0].layers[1].attention.retention.fades=false"])
    assert plain == "evaluation-memory.budget=64,stages[0].layers[1].attention.retention.fades=false.json"
    bent = [results_file([f"layer.attention.memory={{kind: full{end}}}"]) for end in ("", " ", "/")]
    assert bent[0].startswith("evaluation-memory=_kind_full_-")
    assert len({*bent}) == 3
    assert not any("/" in name for name in bent)
    assert len(results_file([f"layer.attention.memory.budget={'1' * 300}"])) < 160
