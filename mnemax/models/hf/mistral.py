"""Mistral (Jiang et al. 2023, arXiv 2310.06825): Llama without biases, with one window on all layers or on none."""

from typing import Any

from mnemax.configs.schema import ModelConfig
from mnemax.models.hf.family import Family, HFConfig
from mnemax.models.hf.fields import (
    DEFAULTS,
    NAMES,
    layer_windows,
    read_layer,
    read_model,
    write_model,
)


def read(hf: HFConfig) -> dict[str, Any]:
    layer = read_layer(hf, window=hf["sliding_window"], qkv_bias=False, output_bias=False)
    return read_model(hf, [layer] * hf["num_hidden_layers"])


def write(model: ModelConfig) -> HFConfig:
    return {**write_model(model), "sliding_window": layer_windows(model)[0]}


FAMILY = Family(
    architecture="MistralForCausalLM",
    model_type="mistral",
    defaults={
        **DEFAULTS,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "max_position_embeddings": 131_072,
        "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "num_key_value_heads": 8,
        "sliding_window": 4096,
        "vocab_size": 32000,
    },
    names=NAMES,
    read=read,
    write=write,
)
