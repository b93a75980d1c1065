"""Both directions against transformers itself, on random weights that are nowhere near their initial values."""

import contextlib
import json
import os
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml

from mnemax.configs.schema import ModelConfig
from mnemax.errors import UserError
from mnemax.models import hf
from mnemax.models.params import bind, weights

os.environ.setdefault("HF_HUB_OFFLINE", "1")
ROOT = Path(__file__).parents[3]
GOLDEN = ROOT / "tests" / "golden"
TOGGLES = [{}, {"tie_word_embeddings": True}, {"tie_word_embeddings": False}, {"attention_bias": True}, {"num_key_value_heads": 4}]
pytestmark = pytest.mark.torch


def foreign():
    """Each golden model's folder and a field to change in it; those that are there for their rotation are taken as they are."""
    for path in sorted(GOLDEN.glob("hf/*/config.json")):
        fields, name = json.loads(path.read_text()), path.parent.name
        for toggle in TOGGLES[:1] if name.startswith("llama_") else TOGGLES:
            refused = not toggle.keys() <= {"tie_word_embeddings"} and name.startswith(("deepseek", "gemma4_keys"))
            if not refused and all(field in fields and fields[field] != value for field, value in toggle.items()):
                yield pytest.param(path.parent, toggle, id="-".join([name, *toggle]))


def shipped():
    """The shipped models that some family holds, by name."""
    held = {}
    for path in sorted((ROOT / "mnemax/configs/models").glob("*.yaml")):
        config = ModelConfig.model_validate(yaml.safe_load(path.read_text()))
        with contextlib.suppress(UserError):
            hf.holder(config)
            held[path.stem] = config
    return held


def logits(config, params, tokens):
    config = config.model_copy(update={"dtype": "float32"})
    return jax.jit(lambda params, tokens: bind(config, params)(tokens)[0])(params, tokens)


def torch_logits(model, tokens):
    import torch

    with torch.no_grad():
        return model.eval()(torch.tensor(tokens)).logits.float().numpy()


def random_params(config, seed=0):
    rng = np.random.default_rng(seed)
    scale = {True: 0.15, False: 0.3}
    return {
        path: jnp.asarray(scale[weight.contract > 0] * rng.standard_normal(weight.shape) + path.endswith("scale"), jnp.float32)
        for path, weight in weights(config).items()
    }


@pytest.mark.parametrize(("folder", "toggle"), list(foreign()))
def test_import_of_random_models(folder, toggle, tmp_path):
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(1)
    reference = AutoConfig.from_pretrained(folder, **toggle)
    model = AutoModelForCausalLM.from_config(reference, attn_implementation="eager", dtype=torch.float32)
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.3 * torch.randn_like(weight)
    model.save_pretrained(tmp_path)
    config, params = hf.load(tmp_path)
    tokens = np.random.default_rng(0).integers(0, config.vocab_size, (3, config.max_length))
    np.testing.assert_allclose(logits(config, params, tokens), torch_logits(model, tokens), atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", shipped())
def test_export_of_shipped_models(name, tmp_path):
    from transformers import AutoModelForCausalLM

    config = shipped()[name]
    params = random_params(config)
    hf.save(tmp_path / "out", config, params, max_shard_bytes=200_000)
    model, info = AutoModelForCausalLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(info.values()), info
    tokens = np.random.default_rng(0).integers(0, config.vocab_size, (2, 48))
    np.testing.assert_allclose(logits(config, params, tokens), torch_logits(model, tokens), atol=1e-4, rtol=0)

    again, same = hf.load(tmp_path / "out")
    assert again == config
    assert params.keys() == same.keys()
    assert all(np.array_equal(params[path], same[path]) for path in params)


def test_what_transformers_saves_again_is_the_same_model(tmp_path):
    from transformers import AutoModelForCausalLM

    config = shipped()["gemma3"]
    params = random_params(config)
    hf.save(tmp_path / "ours", config, params)
    AutoModelForCausalLM.from_pretrained(tmp_path / "ours").save_pretrained(tmp_path / "theirs")
    again, same = hf.load(tmp_path / "theirs")
    assert again == config
    assert all(np.array_equal(params[path], same[path]) for path in params)


def test_exported_tokenizer_and_bfloat16_weights(tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from mnemax.data.config import EmbeddedTokenizer
    from mnemax.data.tokenizers import load_tokenizer

    config, params = hf.load(GOLDEN / "hf" / "llama")
    tokenizer = load_tokenizer(EmbeddedTokenizer())
    hf.save(tmp_path / "out", config, params, tokenizer=tokenizer, dtype="bfloat16")
    text = "To be, or not to be: that is the question."
    assert AutoTokenizer.from_pretrained(tmp_path / "out")(text, add_special_tokens=False).input_ids == tokenizer.encode(text)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert str(model.dtype) == "torch.bfloat16"
    assert model.config.eos_token_id == model.generation_config.eos_token_id == tokenizer.eos


@pytest.mark.slow
def test_the_real_model_continues_as_it_does_in_transformers():
    folder = os.environ.get("MNEMAX_SMOLLM2")
    if not folder:
        pytest.skip("MNEMAX_SMOLLM2 does not name the folder that scripts/fetch_smollm2.py writes")
    golden = json.loads((GOLDEN / "smollm2.json").read_text())
    config, params = hf.load(folder)
    prompt, expected = golden["prompt_ids"], golden["greedy_ids"]
    last = jax.jit(lambda params, tokens, at: bind(config, params)(tokens)[0][0, at])
    tokens = np.zeros((1, len(prompt) + len(expected)), np.int32)  # what is not yet written lies after every query
    tokens[0, : len(prompt)] = prompt
    first = np.asarray(last(params, tokens, len(prompt) - 1))
    np.testing.assert_allclose(first[golden["top5_ids"]], golden["top5_logits"], atol=1e-3)
    for at in range(len(prompt), tokens.shape[1]):
        tokens[0, at] = np.argmax(last(params, tokens, at - 1))
    assert tokens[0, len(prompt) :].tolist() == expected
