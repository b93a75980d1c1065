"""Import and export against tiny models that transformers saved, with the logits it gave (scripts/make_hf_golden.py)."""

import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from safetensors import safe_open

from mnemax.models import hf
from mnemax.models.params import bind

GOLDEN = Path(__file__).parents[2] / "golden" / "hf"
CASES = sorted(path.parent.name for path in GOLDEN.glob("*/config.json"))


def logits(config, params, tokens):
    config = config.model_copy(update={"dtype": "float32"})
    return jax.jit(lambda params, tokens: bind(config, params)(tokens)[0])(params, tokens)


def tensors(folder):
    found = {}
    for path in folder.glob("*.safetensors"):
        with safe_open(path, framework="np") as file:
            assert file.metadata() == {"format": "pt"}
            found |= {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    return found


def within(theirs, ours):
    """Whether all that they set is set here; we spell out what they leave to defaults."""
    return all(within(value, ours[key]) if isinstance(value, dict) else value == ours[key] for key, value in theirs.items())


def read(path):
    return json.loads(path.read_text())


@pytest.mark.parametrize("case", CASES)
def test_import_gives_the_logits_of_transformers(case):
    config, params = hf.load(GOLDEN / case)
    golden = np.load(GOLDEN / case / "logits.npz")
    assert all(value.dtype == np.float32 for value in params.values())
    np.testing.assert_allclose(logits(config, params, golden["tokens"]), golden["logits"], atol=1e-4, rtol=0)


@pytest.mark.parametrize("case", CASES)
def test_export_gives_the_same_tensors_and_fields(case, tmp_path):
    theirs = read(GOLDEN / case / "config.json")
    config, params = hf.load(GOLDEN / case)
    hf.save(tmp_path / "out", config, params, carry=GOLDEN / case, dtype=theirs["dtype"])
    before, after = tensors(GOLDEN / case), tensors(tmp_path / "out")
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        assert after[name].dtype == tensor.dtype, name
        assert after[name].tobytes() == tensor.tobytes(), name
    ours = read(tmp_path / "out" / "config.json")
    assert {"architectures", "model_type", "rope_parameters", "hidden_size", "eos_token_id"} <= ours.keys()
    assert within(theirs.pop("rope_parameters"), ours.pop("rope_parameters"))
    assert [(field, ours[field]) for field in theirs if field in ours] == [pair for pair in theirs.items() if pair[0] in ours]
    assert hf.load(tmp_path / "out")[0] == config


def test_shards_are_as_transformers_splits_them(tmp_path):
    config, params = hf.load(GOLDEN / "llama")
    hf.save(tmp_path / "out", config, params, max_shard_bytes=5000)
    index = read(tmp_path / "out" / "model.safetensors.index.json")
    assert index["metadata"] == read(GOLDEN / "llama" / "model.safetensors.index.json")["metadata"]
    for file in set(index["weight_map"].values()):
        with safe_open(tmp_path / "out" / file, framework="np") as shard:
            names = set(shard.keys())
            assert names == {name for name, where in index["weight_map"].items() if where == file}
            assert sum(shard.get_tensor(name).nbytes for name in names) <= 5000
    assert len(set(index["weight_map"].values())) > 1
    _, again = hf.load(tmp_path / "out")
    assert params.keys() == again.keys()
    assert all(np.array_equal(params[path], again[path]) for path in params)


@pytest.mark.parametrize("case", ["llama_linear", "llama_dynamic", "llama_yarn", "llama_llama3"])
def test_rope_in_the_form_before_transformers_5(case, tmp_path):
    config, _ = hf.load(GOLDEN / case)
    fields = read(GOLDEN / case / "config.json")
    scaling = fields.pop("rope_parameters")
    fields |= {"rope_theta": scaling.pop("rope_theta"), "rope_scaling": scaling, "torch_dtype": fields.pop("dtype")}
    if case == "llama_linear":
        scaling["type"] = scaling.pop("rope_type")
    assert hf_config(fields, case, tmp_path) == config


def test_gemma3_in_the_form_before_transformers_5(tmp_path):
    config, _ = hf.load(GOLDEN / "gemma3")
    fields = read(GOLDEN / "gemma3" / "config.json")
    for name in ("rope_parameters", "layer_types", "tie_word_embeddings", "attention_bias", "_sliding_window_pattern"):
        del fields[name]
    fields |= {"rope_theta": 1000.0, "rope_local_base_freq": 100.0, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}
    assert hf_config({**fields, "sliding_window_pattern": 6}, "gemma3", tmp_path) == config


def hf_config(fields, case, tmp_path):
    folder = shutil.copytree(GOLDEN / case, tmp_path / case)
    (folder / "config.json").write_text(json.dumps(fields))
    return hf.load(folder)[0]


def test_tokenizer_and_generation_settings_go_along(tmp_path):
    from mnemax.data.config import BytesTokenizer
    from mnemax.data.tokenizers import load_tokenizer

    config, params = hf.load(GOLDEN / "llama")
    own = load_tokenizer(BytesTokenizer())
    hf.save(tmp_path / "own", config, params, tokenizer=own)
    assert load_hf_tokenizer(tmp_path / "own").encode("héllo") == own.encode("héllo")
    assert read(tmp_path / "own" / "config.json")["eos_token_id"] == own.eos
    assert read(tmp_path / "own" / "generation_config.json")["eos_token_id"] == own.eos

    settings = {"temperature": 0.6, "eos_token_id": [2, 3]}
    (tmp_path / "own" / "generation_config.json").write_text(json.dumps(settings))
    hf.save(tmp_path / "again", config, params, carry=tmp_path / "own")
    assert {path.name for path in hf.carried_files(tmp_path / "own")} >= {"tokenizer.json", "tokenizer_config.json"}
    assert (tmp_path / "again" / "tokenizer.json").read_bytes() == (tmp_path / "own" / "tokenizer.json").read_bytes()
    assert read(tmp_path / "again" / "generation_config.json").items() >= settings.items()
    assert read(tmp_path / "again" / "config.json")["eos_token_id"] == [2, 3]


def load_hf_tokenizer(folder):
    from mnemax.data.config import HFTokenizer
    from mnemax.data.tokenizers import load_tokenizer

    return load_tokenizer(HFTokenizer(path=str(folder)))
