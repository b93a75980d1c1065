"""From YAML and overrides to a configuration, and the sentence that each mistake gets."""

from pathlib import Path

import pytest
import yaml

from mnemax.configs import load
from mnemax.configs.load import load_model, load_run, shipped
from mnemax.configs.merge import merge
from mnemax.errors import UserError
from mnemax.layers.memories.full import FullConfig
from mnemax.layers.memories.window import WindowConfig

ATTENTION = "stages[0].layers[0].attention"
MEMORY = f"{ATTENTION}.memory"


def write(folder: Path, name: str, tree: dict) -> str:
    path = folder / name
    path.write_text(yaml.safe_dump(tree))
    return str(path)


@pytest.fixture
def model() -> dict:
    return {
        "width": 64,
        "vocab_size": 264,
        "layer": {
            "attention": {"projection": {"kind": "gqa", "heads": 4, "kv_heads": 2, "head_width": 16}},
            "feedforward": {"kind": "glu", "width": 160},
        },
        "stages": [{"repeat": 2, "layers": [{}, {"attention": {"memory": {"kind": "window", "size": 8}}}]}],
    }


def test_layer_defaults_reach_every_layer(model, tmp_path):
    config = load_model(write(tmp_path, "m.yaml", model))
    assert [type(layer.attention.memory) for layer in config.layers] == [FullConfig, WindowConfig] * 2
    assert {layer.attention.projection.heads for layer in config.layers} == {4}


def test_base_lies_under_its_file_and_beside_it(model, tmp_path):
    write(tmp_path, "parent.yaml", model)
    child = write(tmp_path, "child.yaml", {"base": "parent.yaml", "width": 32, "layer": {"feedforward": {"width": 10}}})
    config = load_model(child)
    assert (config.width, config.vocab_size) == (32, 264)
    assert config.layers[0].feedforward.model_dump() == {"kind": "glu", "width": 10, "activation": "silu"}


def test_a_model_is_named_within_a_run_and_changed(tmp_path):
    rest = {"steps": 3, "data": {"sequence_length": 32}}
    run = load_run(write(tmp_path, "r.yaml", {"model": {"base": "window", "width": 32}, **rest}))
    assert run.name == "r"
    assert run.model == load_model("window", ["width=32"])
    named = load_run(write(tmp_path, "s.yaml", {"model": "window", **rest}))
    assert named.model == load_model("window")


def test_another_kind_replaces_the_node_and_its_fields(model, tmp_path):
    path = write(tmp_path, "m.yaml", model)
    config = load_model(path, ["layer.feedforward.width=99", "layer.feedforward.kind=mlp"])
    assert config.layers[0].feedforward.model_dump() == {"kind": "mlp", "width": 99, "activation": "relu2"}
    child = write(tmp_path, "child.yaml", {"base": "m.yaml", "layer": {"feedforward": {"kind": "mlp", "width": 7}}})
    assert load_model(child).layers[0].feedforward.model_dump() == {"kind": "mlp", "width": 7, "activation": "relu2"}


def test_overrides_read_numbers_lists_and_null():
    run = load_run("default", ["optimizer.peak_lr=1e-3", "training.spike=null", "steps=7", "mesh.fsdp=2", "log.tensorboard=false"])
    assert (run.optimizer.peak_lr, run.training.spike, run.steps, run.mesh.fsdp) == (1e-3, None, 7, 2)
    assert run.log.tensorboard is False
    model = load_model("llama", ["stages.0.repeat=5", "norm.placement=post"])
    assert (len(model.layers), model.norm.placement) == (5, "post")


@pytest.mark.parametrize("name", shipped("experiments"))
def test_a_saved_run_reads_as_itself(name, tmp_path):
    run = load_run(name)
    load.save(run, tmp_path / "config.yaml")
    assert load_run(str(tmp_path / "config.yaml")) == run


@pytest.mark.parametrize("name", shipped("models"))
def test_a_saved_model_reads_as_itself(name, tmp_path):
    model = load_model(name)
    load.save(model, tmp_path / "model.yaml")
    assert load_model(str(tmp_path / "model.yaml")) == model


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["optimiser.peak_lr=1"], "default: optimiser: no such field; did you mean 'optimizer'? allowed: name, steps"),
        (["optimizer.peek_lr=1"], "optimizer.peek_lr: no such field; did you mean 'peak_lr'? allowed: peak_lr, schedule"),
        (["optimizer.peak_lr=-1"], "optimizer.peak_lr: input should be greater than 0, got -1"),
        (["steps=many"], "steps: input should be a valid integer, unable to parse string as an integer, got 'many'"),
        (["optimizer.kind=muom"], "optimizer.kind: input should be 'adamw' or 'muon', got 'muom'"),
        (["training.accumulate=3"], "data.batch_size (16) is not divisible by training.accumulate (3)"),
        (["data.sequence_length=1000"], "data.sequence_length (1000) exceeds model.max_length (512)"),
        (["mesh.data=-1", "mesh.fsdp=-1"], "mesh: sizes (-1, -1, 1): each is at least 1, and one at most is -1"),
        (["steps"], "'steps' is not an override: write dotted.field=value."),
        (["model.stages.7.repeat=2"], "override model.stages.7.repeat: there is no such place"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_mistakes_in_a_run(overrides, sentence):
    with pytest.raises(UserError) as error:
        load_run("default", overrides)
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["layer.attention.projection.heads=3"], f"{ATTENTION}.projection: heads (3) is not divisible by kv_heads (2)"),
        (["layer.attention.projection.head=3"], f"{ATTENTION}.projection.head: no such field; did you mean 'heads'? allowed"),
        (["layer.attention.projection.rope.fraction=0.2"], "rope.fraction (0.2) of head_width (16) is odd"),
        (["layer.attention.memory.kind=window", "layer.attention.memory.size=0"], f"{MEMORY}.size: input should be greater"),
        (["layer.attention.memory.kind=windw"], f"{MEMORY}: no kind 'windw'; did you mean 'window'? allowed: "),
        (["layer.attention.memory.size=3"], f"{MEMORY}: needs a 'kind', got {{'size': 3}}"),
        (["layer.attention.memory.kind=window"], f"{MEMORY}.size: this field is required"),
        (["layer.attention.read=nothing"], f"{ATTENTION}.read: no layer before it writes 'nothing' (written so far: none)"),
        (["layer.attention.write=kv"], "stages[0].layers[1].attention.write: the name 'kv' is written twice"),
        (["layer.attention.read=kv", "layer.attention.write=kv"], "'write' cannot stand beside 'read: kv'"),
        (["layer.attention.attends=false"], f"{ATTENTION}: attends: false leaves nothing to do for a layer that writes no name"),
        (["stages=[]"], "stages: tuple should have at least 1 item"),
        (["widht=3"], "widht: no such field; did you mean 'width'? allowed: width"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_mistakes_in_a_model(overrides, sentence, model, tmp_path):
    path = write(tmp_path, "m.yaml", model)
    with pytest.raises(UserError) as error:
        load_model(path, overrides)
    assert str(error.value).startswith(f"{path}: ")
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


def test_values_as_wide_as_keys_are_the_default():
    assert load_model("llama", ["layer.attention.projection.value_width=16"]) == load_model("llama")


def test_a_reader_must_fit_its_writer(model, tmp_path):
    writer, reader = {"attention": {"write": "kv"}}, {"attention": {"read": "kv", "projection": {"kv_heads": 4}}}
    with pytest.raises(UserError, match="cannot read 'kv': kv_heads is 4 here and 2 where it is written"):
        load_model(write(tmp_path, "m.yaml", model | {"stages": [{"layers": [writer, reader]}]}))


@pytest.mark.parametrize(
    ("attention", "sentence"),
    [
        ({"read": "kv"}, "'attends: false' cannot stand beside 'read: kv'"),
        ({"write": "kv", "sink_logits": True}, "'sink_logits' cannot stand beside 'attends: false'"),
        ({"write": "kv", "output_gate": "head"}, "'output_gate' cannot stand beside 'attends: false'"),
        (
            {"write": "kv", "memory": {"kind": "bounded", "budget": 8}, "retention": {"kind": "h2o"}},
            "retention h2o goes by the queries",
        ),
        (
            {"write": "kv", "projection": {"kind": "key_driven", "heads": 4, "kv_heads": 2, "head_width": 16}},
            "and key_driven queries are dealt out by the weights of their own",
        ),
    ],
    ids=["read", "sink", "gate", "retention", "projection"],
)
def test_what_cannot_stand_in_a_layer_that_only_writes(attention, sentence, model, tmp_path):
    layer = merge({"attention": {"projection": model["layer"]["attention"]["projection"]}}, {"attention": attention})
    with pytest.raises(UserError, match=sentence):
        load_model(write(tmp_path, "m.yaml", model | {"stages": [{"layers": [merge(layer, {"attention": {"attends": False}})]}]}))


def test_names_stay_in_a_repeated_stage(model, tmp_path):
    writer, reader = ([{"attention": {role: "kv"}}] for role in ("write", "read"))
    with pytest.raises(UserError, match=r"stages\[1\].*no layer before it writes 'kv'"):
        load_model(write(tmp_path, "m.yaml", model | {"stages": [{"repeat": 2, "layers": writer}, {"layers": reader}]}))
    assert load_model(write(tmp_path, "m.yaml", model | {"stages": [{"layers": writer}, {"layers": reader}]}))


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("- 1\n- 2\n", "holds list, not a mapping of fields"),
        ("a: [1\n", "is not valid YAML"),
        ("base: {x: 1}\n", "'base' must be the name of a configuration or a file"),
        ("base: me.yaml\n", "'base' leads back to itself"),
        ("base: lama\n", "'lama' is neither a file nor a shipped configuration; did you mean 'llama'?"),
        ("width: ${nowhere}\n", "Interpolation key 'nowhere' not found"),
    ],
    ids=["list", "syntax", "base a mapping", "base a circle", "base unknown", "interpolation"],
)
def test_mistakes_in_a_file(content, sentence, tmp_path):
    path = tmp_path / "me.yaml"
    path.write_text(content)
    with pytest.raises(UserError) as error:
        load_run(str(path)) if "lama" not in content else load_model(str(_as_model(path, content)))
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


def _as_model(path: Path, content: str) -> Path:
    """A base is looked for among the shipped models where a model is read."""
    path.write_text(f"model:\n  {content}")
    return path


def test_an_unknown_name_is_told_what_there_is():
    with pytest.raises(UserError, match=r"'defalt' is neither .* did you mean 'default'\? shipped experiments: .*default"):
        load_run("defalt")
