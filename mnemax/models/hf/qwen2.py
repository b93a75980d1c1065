"""Qwen2 and Qwen2.5 (Yang et al. 2024, arXiv 2407.10671): biases on queries, keys and values; a window from some layer on."""

from typing import Any

from mnemax.configs.schema import ModelConfig
from mnemax.models.hf.family import Family, HFConfig
from mnemax.models.hf.fields import (
    DEFAULTS,
    NAMES,
    layer_windows,
    read_layer,
    read_model,
    read_windows,
    write_model,
    write_windows,
)

QWEN_DEFAULTS: HFConfig = {
    **DEFAULTS,
    "hidden_size": 4096,
    "intermediate_size": 22016,
    "max_position_embeddings": 32768,
    "max_window_layers": 28,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 32,
    "sliding_window": 4096,
    "use_sliding_window": False,
    "vocab_size": 151_936,
}


def read_qwen_windows(hf: HFConfig) -> list[int | None]:
    """Each layer's window; the fields are those of Qwen2 and Qwen3."""
    size = hf["sliding_window"] if hf["use_sliding_window"] else None
    return read_windows(
        {**hf, "sliding_window": size},
        lambda i: size is not None and i >= hf["max_window_layers"],
    )


def write_qwen_windows(model: ModelConfig) -> HFConfig:
    windows = layer_windows(model)
    first = next((i for i, window in enumerate(windows) if window is not None), None)
    if first is None:
        return {**write_windows(model), "sliding_window": None, "use_sliding_window": False}
    return {**write_windows(model), "use_sliding_window": True, "max_window_layers": first}


def read(hf: HFConfig) -> dict[str, Any]:
    layers = [read_layer(hf, window=window, qkv_bias=True, output_bias=False) for window in read_qwen_windows(hf)]
    return read_model(hf, layers)


def write(model: ModelConfig) -> HFConfig:
    return {**write_model(model), **write_qwen_windows(model)}


FAMILY = Family(
    architecture="Qwen2ForCausalLM",
    model_type="qwen2",
    defaults=QWEN_DEFAULTS,
    names=NAMES,
    read=read,
    write=write,
)
