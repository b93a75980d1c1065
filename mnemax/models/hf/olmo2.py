"""OLMo-2 (OLMo team 2024, arXiv 2501.00656): norms on the sub-layers' outputs, and on all heads' queries or keys as one vector."""

from typing import Any

from mnemax.configs.schema import ModelConfig
from mnemax.models.hf.family import Family, HFConfig
from mnemax.models.hf.fields import (
    DEFAULTS,
    NAMES,
    QK_NORM_NAMES,
    first_projection,
    read_layer,
    read_model,
    write_model,
)


def read(hf: HFConfig) -> dict[str, Any]:
    return read_model(
        hf,
        [read_layer(hf, qk_norm="joint")] * hf["num_hidden_layers"],
        {"placement": "post"},
    )


def write(model: ModelConfig) -> HFConfig:
    return {**write_model(model), "attention_bias": first_projection(model).qkv_bias}


FAMILY = Family(
    architecture="Olmo2ForCausalLM",
    model_type="olmo2",
    defaults={
        **DEFAULTS,
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "max_position_embeddings": 2048,
        "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "rms_norm_eps": 1e-5,
        "vocab_size": 50304,
    },
    names=NAMES
    | QK_NORM_NAMES
    | {
        "attention_post_norm.scale": "model.layers.{i}.post_attention_layernorm.weight",
        "feedforward_post_norm.scale": "model.layers.{i}.post_feedforward_layernorm.weight",
    },
    read=read,
    write=write,
)
