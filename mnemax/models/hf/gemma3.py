"""Gemma-3 text (Gemma team 2025, arXiv 2503.19786): five windowed layers to each global one, each sort with its own rotation."""

from typing import Any

from mnemax.configs.schema import ModelConfig
from mnemax.layers.projections.gqa import GQAConfig
from mnemax.layers.rotary import RotaryConfig
from mnemax.models.hf.family import Family, HFConfig, Unfit
from mnemax.models.hf.fields import (
    QK_NORM_NAMES,
    layer_windows,
    read_rope,
    read_windows,
    rope_parameters,
    write_rope,
)
from mnemax.models.hf.gemma2 import (
    GEMMA_DEFAULTS,
    GEMMA_NAMES,
    read_gemma,
    read_gemma_layer,
    write_gemma,
)


def read(hf: HFConfig) -> dict[str, Any]:
    if hf.get("attn_logit_softcapping") is not None:
        raise Unfit("attn_logit_softcapping is set, which its own model does not apply")
    given = hf.get("rope_parameters") or {}
    wide = read_rope(hf, {**(given.get("full_attention") or {}), **(hf.get("rope_scaling") or {})})
    near = read_rope(
        {**hf, "rope_theta": hf["rope_local_base_freq"]},
        given.get("sliding_attention") or {},
    )
    layers = [
        read_gemma_layer(hf, window=window, rope=wide if window is None else near, qk_norm="head")
        for window in read_windows(hf, lambda i: (i + 1) % hf["sliding_window_pattern"] != 0)
    ]
    return read_gemma(hf, layers)


def write(model: ModelConfig) -> HFConfig:
    windows = layer_windows(model)
    wide, near = (_rope(model, [i for i, window in enumerate(windows) if (window is None) is full]) for full in (True, False))
    return {
        **write_gemma(model),
        **write_rope(wide),
        "rope_local_base_freq": near.theta,
        "rope_parameters": {
            "full_attention": rope_parameters(wide),
            "sliding_attention": rope_parameters(near),
        },
    }


def _rope(model: ModelConfig, layers: list[int]) -> RotaryConfig:
    """The rotation of the first of these layers."""
    projections = [model.layers[i].attention.projection for i in layers]
    return next(
        (p.rope for p in projections if isinstance(p, GQAConfig) and p.rope is not None),
        RotaryConfig(),
    )


FAMILY = Family(
    architecture="Gemma3ForCausalLM",
    model_type="gemma3_text",
    defaults={
        **GEMMA_DEFAULTS,
        "final_logit_softcapping": None,
        "max_position_embeddings": 131_072,
        "rope_local_base_freq": 10_000.0,
        "rope_theta": 1_000_000.0,
        "sliding_window_pattern": 6,
        "vocab_size": 262_208,
    },
    names=GEMMA_NAMES | QK_NORM_NAMES,
    read=read,
    write=write,
)
