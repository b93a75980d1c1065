"""Qwen3, dense (Yang et al. 2025, arXiv 2505.09388): RMSNorm on each query and key head in place of Qwen2's biases."""

from typing import Any

from mnemax.configs.schema import ModelConfig
from mnemax.models.hf.family import Family, HFConfig
from mnemax.models.hf.fields import (
    NAMES,
    QK_NORM_NAMES,
    first_projection,
    read_layer,
    read_model,
    write_model,
)
from mnemax.models.hf.qwen2 import QWEN_DEFAULTS, read_qwen_windows, write_qwen_windows


def read(hf: HFConfig) -> dict[str, Any]:
    return read_model(
        hf,
        [read_layer(hf, window=window, qk_norm="head") for window in read_qwen_windows(hf)],
    )


def write(model: ModelConfig) -> HFConfig:
    return {
        **write_model(model),
        **write_qwen_windows(model),
        "attention_bias": first_projection(model).qkv_bias,
    }


FAMILY = Family(
    architecture="Qwen3ForCausalLM",
    model_type="qwen3",
    defaults={**QWEN_DEFAULTS, "head_dim": 128},
    names=NAMES | QK_NORM_NAMES,
    read=read,
    write=write,
)
