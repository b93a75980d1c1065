"""Folders that are no model, or not the one they say, and models that no family holds: one sentence that names what is wrong."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml
from safetensors.numpy import load_file, save_file

from mnemax.configs.schema import ModelConfig
from mnemax.errors import UserError
from mnemax.models import hf

ROOT = Path(__file__).parents[3]
GOLDEN = ROOT / "tests" / "golden" / "hf"


@pytest.fixture
def folder(tmp_path):
    """A model that the tests damage."""
    return shutil.copytree(GOLDEN / "qwen3", tmp_path / "model")


def refused(folder):
    with pytest.raises(UserError) as error:
        hf.load(folder)
    message = str(error.value)
    assert message.endswith(".")
    assert "\n" not in message
    return message


def change(folder, **fields):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def rewrite(folder, change):
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def test_no_folder(tmp_path):
    assert "is not a folder" in refused(tmp_path / "none")


def test_no_config(tmp_path):
    assert "no config.json" in refused(tmp_path)


def test_config_is_no_json(folder):
    (folder / "config.json").write_text("{")
    assert "config.json is no JSON" in refused(folder)
    (folder / "config.json").write_text("[]")
    assert "holds list" in refused(folder)


def test_unknown_architecture(folder):
    change(folder, architectures=["MixtralForCausalLM"])
    message = refused(folder)
    assert "'MixtralForCausalLM'" in message
    assert "Olmo2ForCausalLM" in message


@pytest.mark.parametrize(
    ("case", "fields", "words"),
    [
        ("llama", {"mlp_bias": True}, "mlp_bias"),
        ("llama", {"rope_scaling": {"type": "su", "factor": 2.0}}, "rope type 'su'"),
        ("llama", {"hidden_act": "mish"}, "activation 'mish'"),
        ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ("llama", {"quantization_config": {"bits": 4}}, "quantization_config"),
        ("llama", {"num_key_value_heads": 3}, "heads (4) is not divisible by kv_heads (3)"),
        ("llama", {"hidden_size": "wide"}, "config.json"),
        ("llama", {"num_attention_heads": 0}, "config.json"),
        ("qwen2", {"layer_types": ["full_attention"]}, "1 entries for 2 layers"),
        ("qwen2", {"layer_types": ["full_attention", "linear_attention"]}, "'linear_attention'"),
        ("gemma2", {"sliding_window": None}, "sliding_window"),
        ("gemma3", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ("gemma4", {"hidden_size_per_layer_input": 8}, "hidden_size_per_layer_input is 8"),
        ("gemma4", {"enable_moe_block": True}, "enable_moe_block"),
        ("gemma4", {"attention_k_eq_v": True}, "num_kv_shared_layers is 2"),
        (
            "gemma4",
            {"layer_types": [*["sliding_attention"] * 4, "full_attention"]},
            "no layer before these is of the type of layer 4",
        ),
        ("gemma4", {"per_layer_config": {"2": {"intermediate_size": 8}}}, "'intermediate_size' for layer 2"),
        ("gemma4_keys", {"attention_bias": True}, "attention_bias"),
        ("deepseek_v3", {"first_k_dense_replace": 1}, "first_k_dense_replace (1)"),
        ("deepseek_v3", {"rms_norm_eps": 1e-5}, "rms_norm_eps is 1e-05"),
        ("deepseek_v3", {"attention_bias": True}, "attention_bias"),
        ("deepseek_v3", {"rope_interleave": False}, "rope_interleave"),
        ("deepseek_v3", {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "mscale_all_dim": 1.0}}, "mscale_all_dim"),
    ],
)
def test_config_that_the_model_cannot_be(case, fields, words, tmp_path):
    folder = shutil.copytree(GOLDEN / case, tmp_path / "model")
    change(folder, **fields)
    assert words in refused(folder)


def test_missing_tensors(folder):
    rewrite(folder, lambda tensors: [tensors.pop(name) for name in list(tensors) if "mlp" in name])
    message = refused(folder)
    assert "lacks 6 of" in message
    assert "model.layers.0.mlp.down_proj.weight" in message
    assert "..." in message


def test_extra_tensors(folder):
    rewrite(folder, lambda tensors: tensors.update({"model.layers.0.self_attn.q_proj.bias": np.zeros(32, np.float32)}))
    assert "has 1 tensors that its config.json has no place for: model.layers.0.self_attn.q_proj.bias" in refused(folder)


def test_readout_of_a_tied_model_must_be_the_embedding(folder):
    rewrite(folder, lambda tensors: tensors.update({"lm_head.weight": tensors["model.embed_tokens.weight"].copy()}))
    hf.load(folder)
    rewrite(folder, lambda tensors: tensors.update({"lm_head.weight": tensors["lm_head.weight"] * 2}))
    assert "lm_head.weight" in refused(folder)


def test_shape_that_disagrees(folder):
    change(folder, intermediate_size=20)
    message = refused(folder)
    assert "model.layers.0.mlp.gate_proj.weight has shape (12, 16); config.json asks for (20, 16)" in message


def test_dtype_that_is_no_weight(folder):
    rewrite(folder, lambda tensors: tensors.update({"model.norm.weight": np.zeros(16, np.int8)}))
    assert "model.norm.weight is of type I8" in refused(folder)


@pytest.mark.parametrize("kept", [0, 4, 1000, -5])
def test_truncated_weights(folder, kept):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept])
    assert "model.safetensors is no whole safetensors file" in refused(folder)


def test_no_weights(folder):
    (folder / "model.safetensors").unlink()
    assert "has neither" in refused(folder)


def test_missing_shard(tmp_path):
    folder = shutil.copytree(GOLDEN / "llama", tmp_path / "model")
    shard = max(folder.glob("*.safetensors"))
    shard.unlink()
    assert f"names {shard.name}, which the folder lacks" in refused(folder)


def test_bad_index(tmp_path):
    folder = shutil.copytree(GOLDEN / "llama", tmp_path / "model")
    (folder / "model.safetensors.index.json").write_text("{}")
    assert "is no index" in refused(folder)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("window", "mistral: layers[0].attention.memory.sinks is 2"),
        ("relu2", "llama: feedforward is of kind 'mlp'"),
        ("sink_logits", "qwen2: layers[0].attention.projection.output_bias is True"),
        ("cla", "llama: layers[1].attention.read is layers[0], there None"),
        ("nope", "mistral: layers[1].attention.projection.rope is None"),
        ("partial_rope", "llama: layers[0].attention.projection.rope.fraction is 0.5"),
    ],
)
def test_model_that_no_family_holds(name, words, tmp_path):
    config = ModelConfig.model_validate(yaml.safe_load((ROOT / f"mnemax/configs/models/{name}.yaml").read_text()))
    with pytest.raises(UserError, match="No Hugging Face family holds this model exactly") as error:
        hf.save(tmp_path / "out", config, {})
    assert words in str(error.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda first, tail: first[0]["attention"].update(write="other") or tail[0]["attention"].update(read="other"),
            "gemma4: layers[3].attention.read is layers[0], there layers[1]",
        ),
        (
            lambda first, tail: first.insert(2, {"attention": {"read": "sliding"}}),
            "gemma4: layers[2].attention.read is layers[1], there None",
        ),
        (lambda first, tail: tail.pop(), "gemma4: layers[4].attention.memory is window, there full"),
        (lambda first, tail: tail[0]["feedforward"].update(width=480), "gemma4: layers[3].feedforward.width is 480, there 320"),
    ],
    ids=["reads another than the last of its type", "reads before the tail", "ends with a window", "width of the tail"],
)
def test_tail_that_gemma4_cannot_have(change, words):
    fields = yaml.safe_load((ROOT / "mnemax/configs/models/gemma4.yaml").read_text())
    first, tail = (stage["layers"] for stage in fields["stages"])
    first[0] = {"attention": {}}
    change(first, tail)
    with pytest.raises(UserError) as error:
        hf.holder(ModelConfig.model_validate(fields))
    assert words in str(error.value)


def test_factor_that_our_layers_have_not(tmp_path):
    folder = shutil.copytree(GOLDEN / "gemma4", tmp_path / "model")
    rewrite(folder, lambda tensors: tensors.update({"model.layers.1.layer_scalar": np.full(1, 0.5, np.float32)}))
    assert "model.layers.1.layer_scalar is 0.5" in refused(folder)


def test_folder_that_is_there_already(folder):
    config, params = hf.load(folder)
    with pytest.raises(UserError, match="is there already"):
        hf.save(folder, config, params)


def test_failed_export_leaves_nothing(tmp_path, monkeypatch):
    import safetensors.numpy

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    config, params = hf.load(GOLDEN / "qwen3")
    monkeypatch.setattr(safetensors.numpy, "save_file", full)
    with pytest.raises(UserError, match="No space left on device"):
        hf.save(tmp_path / "out", config, params)
    assert list(tmp_path.iterdir()) == []
