"""Llama (Touvron et al. 2023, arXiv 2302.13971; Llama 3: arXiv 2407.21783), and SmolLM, which is one."""

from typing import Any

from mnemax.configs.schema import ModelConfig
from mnemax.models.hf.family import Family, HFConfig, Unfit
from mnemax.models.hf.fields import (
    DEFAULTS,
    NAMES,
    check_heads,
    first_projection,
    read_layer,
    read_model,
    write_model,
)


def read(hf: HFConfig) -> dict[str, Any]:
    if hf.get("mlp_bias"):
        raise Unfit("mlp_bias is true, and our gated feed-forward has no biases")
    return read_model(hf, [read_layer(hf)] * hf["num_hidden_layers"])


def write(model: ModelConfig) -> HFConfig:
    check_heads(model)
    return {
        **write_model(model),
        "attention_bias": first_projection(model).qkv_bias,
        "mlp_bias": False,
    }


FAMILY = Family(
    architecture="LlamaForCausalLM",
    model_type="llama",
    defaults={
        **DEFAULTS,
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "max_position_embeddings": 2048,
        "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "vocab_size": 32000,
    },
    names=NAMES,
    read=read,
    write=write,
)
