"""Gemma-2 (Gemma team 2024, arXiv 2408.00118): norms on both sides, soft caps, a window on every other layer."""

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
    read_windows,
    write_model,
    write_windows,
)

GEMMA_DEFAULTS: HFConfig = {
    **DEFAULTS,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_attention_heads": 8,
    "num_hidden_layers": 26,
    "num_key_value_heads": 4,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "tie_word_embeddings": True,
}

GEMMA_NAMES = NAMES | {
    "attention_post_norm.scale": "model.layers.{i}.post_attention_layernorm.weight",
    "feedforward_norm.scale": "model.layers.{i}.pre_feedforward_layernorm.weight",
    "feedforward_post_norm.scale": "model.layers.{i}.post_feedforward_layernorm.weight",
}


def read_gemma(hf: HFConfig, layers: list[dict[str, Any]]) -> dict[str, Any]:
    """What Gemma-2 and Gemma-3 share."""
    if hf.get("use_bidirectional_attention"):
        raise Unfit("use_bidirectional_attention is true, and our attention is causal")
    norm = {"placement": "both", "offset": 1}
    return read_model(
        hf,
        layers,
        norm,
        embed_scale="sqrt_width",
        logit_softcap=hf["final_logit_softcapping"],
    )


def read_gemma_layer(hf: HFConfig, **fields: Any) -> dict[str, Any]:
    """A layer: its activation has a name of its own, and its scale comes from `query_pre_attn_scalar`."""
    square = hf["query_pre_attn_scalar"]
    scale = None if square == hf["head_dim"] else square**-0.5
    return read_layer({**hf, "hidden_act": hf["hidden_activation"]}, scale=scale, **fields)


def write_gemma(model: ModelConfig) -> HFConfig:
    """What Gemma-2 and Gemma-3 share."""
    check_heads(model)
    projection = first_projection(model)
    square = projection.head_width if projection.scale is None else round(projection.scale**-2)
    fields = write_model(model)
    return {
        **fields,
        **write_windows(model),
        "attention_bias": projection.qkv_bias,
        "hidden_activation": fields["hidden_act"],
        "query_pre_attn_scalar": max(square, 1),
        "final_logit_softcapping": model.logit_softcap,
    }


def read(hf: HFConfig) -> dict[str, Any]:
    windows = read_windows(hf, lambda i: i % 2 == 0)
    return read_gemma(
        hf,
        [read_gemma_layer(hf, window=window, softcap=hf["attn_logit_softcapping"]) for window in windows],
    )


def write(model: ModelConfig) -> HFConfig:
    return {
        **write_gemma(model),
        "attn_logit_softcapping": first_projection(model).softcap,
    }


FAMILY = Family(
    architecture="Gemma2ForCausalLM",
    model_type="gemma2",
    defaults={
        **GEMMA_DEFAULTS,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
        "max_position_embeddings": 8192,
        "vocab_size": 256_000,
    },
    names=GEMMA_NAMES,
    read=read,
    write=write,
)
