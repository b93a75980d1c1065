"""Configuration fields that the families share: sizes, rotation, windows."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from mnemax.configs.schema import ModelConfig
from mnemax.layers.feedforward.glu import GLUConfig
from mnemax.layers.memories.window import WindowConfig
from mnemax.layers.projections.gqa import GQAConfig
from mnemax.layers.rotary import RotaryConfig
from mnemax.models.hf.family import HFConfig, Unfit
from mnemax.models.hf.stages import stages_from_layers

DEFAULTS: HFConfig = {
    "attention_bias": False,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10_000.0,
    "tie_word_embeddings": False,
}

NAMES = {
    "embedding": "model.embed_tokens.weight",
    "attention_norm.scale": "model.layers.{i}.input_layernorm.weight",
    "attention.projection.w_q": "model.layers.{i}.self_attn.q_proj.weight",
    "attention.projection.w_k": "model.layers.{i}.self_attn.k_proj.weight",
    "attention.projection.w_v": "model.layers.{i}.self_attn.v_proj.weight",
    "attention.projection.w_o": "model.layers.{i}.self_attn.o_proj.weight",
    "attention.projection.b_q": "model.layers.{i}.self_attn.q_proj.bias",
    "attention.projection.b_k": "model.layers.{i}.self_attn.k_proj.bias",
    "attention.projection.b_v": "model.layers.{i}.self_attn.v_proj.bias",
    "attention.projection.b_o": "model.layers.{i}.self_attn.o_proj.bias",
    "feedforward_norm.scale": "model.layers.{i}.post_attention_layernorm.weight",
    "feedforward.w_gate": "model.layers.{i}.mlp.gate_proj.weight",
    "feedforward.w_up": "model.layers.{i}.mlp.up_proj.weight",
    "feedforward.w_down": "model.layers.{i}.mlp.down_proj.weight",
    "norm.scale": "model.norm.weight",
    "unembedding": "lm_head.weight",
}
"""Llama's names, which the other families extend."""

QK_NORM_NAMES = {
    "attention.projection.q_norm.scale": "model.layers.{i}.self_attn.q_norm.weight",
    "attention.projection.k_norm.scale": "model.layers.{i}.self_attn.k_norm.weight",
}

ACTIVATIONS = {
    "silu": "silu",
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu2",
}

# our field -> theirs
SCALINGS = {
    "linear": {"factor": "factor"},
    "dynamic": {"factor": "factor"},
    "yarn": {
        "factor": "factor",
        "original_length": "original_max_position_embeddings",
        "beta_fast": "beta_fast",
        "beta_slow": "beta_slow",
        "attention_factor": "attention_factor",
        "truncate": "truncate",
    },
    "llama3": {
        "factor": "factor",
        "original_length": "original_max_position_embeddings",
        "low_freq_factor": "low_freq_factor",
        "high_freq_factor": "high_freq_factor",
    },
    "proportional": {"fraction": "partial_rotary_factor"},
}


def read_model(
    hf: HFConfig,
    layers: list[dict[str, Any]],
    norm: dict[str, Any] | None = None,
    **fields: Any,
) -> dict[str, Any]:
    """Fields of ModelConfig."""
    return {
        "width": hf["hidden_size"],
        "vocab_size": hf["vocab_size"],
        "max_length": hf["max_position_embeddings"],
        "tie_embeddings": hf["tie_word_embeddings"],
        "norm": {"eps": hf["rms_norm_eps"], **(norm or {})},
        "init": {"std": hf["initializer_range"]},
        "stages": stages_from_layers(layers),
        **fields,
    }


def read_layer(
    hf: HFConfig,
    *,
    rope: dict[str, Any] | None = None,
    window: int | None = None,
    **projection: Any,
) -> dict[str, Any]:
    """Fields of LayerConfig; `rope` and what `projection` names in place of the usual."""
    heads = hf["num_attention_heads"]
    usual = {
        "kind": "gqa",
        "heads": heads,
        "kv_heads": hf.get("num_key_value_heads") or heads,
        "head_width": hf.get("head_dim") or hf["hidden_size"] // heads,
        "rope": rope or read_rope(hf),
        "qkv_bias": hf["attention_bias"],
        "output_bias": hf["attention_bias"],
    }
    return read_block(hf, usual | projection, window)


def read_block(hf: HFConfig, projection: dict[str, Any], window: int | None = None) -> dict[str, Any]:
    """Fields of LayerConfig around those of its projection."""
    return {
        "attention": {
            "projection": projection,
            "memory": {"kind": "full"} if window is None else {"kind": "window", "size": window},
        },
        "feedforward": {
            "kind": "glu",
            "width": hf["intermediate_size"],
            "activation": _activation(hf["hidden_act"]),
        },
    }


def write_model(model: ModelConfig) -> HFConfig:
    """What every family of grouped queries writes, taken from the first layer."""
    projection = first_projection(model)
    return {
        **write_sizes(model),
        "num_attention_heads": projection.heads,
        "num_key_value_heads": projection.kv_heads,
        "head_dim": projection.head_width,
        **write_rope(projection.rope or RotaryConfig()),
    }


def write_sizes(model: ModelConfig) -> HFConfig:
    """What every family writes but for the projection, taken from the first layer."""
    feedforward = model.layers[0].feedforward
    if not isinstance(feedforward, GLUConfig):
        raise Unfit(f"feedforward is of kind '{getattr(feedforward, 'kind', None)}', there 'glu'")
    named = {ours: theirs for theirs, ours in ACTIVATIONS.items()}
    return {
        "vocab_size": model.vocab_size,
        "hidden_size": model.width,
        "intermediate_size": feedforward.width,
        "num_hidden_layers": len(model.layers),
        "hidden_act": named[feedforward.activation],
        "max_position_embeddings": model.max_length,
        "initializer_range": model.init.std,
        "rms_norm_eps": model.norm.eps,
        "tie_word_embeddings": model.tie_embeddings,
    }


def check_heads(model: ModelConfig) -> None:
    """Some configuration classes of transformers ask for this, whatever the head's width."""
    if model.width % (heads := first_projection(model).heads):
        raise Unfit(f"width ({model.width}) is not a multiple of heads ({heads})")


def first_projection(model: ModelConfig) -> GQAConfig:
    """The first layer's projection."""
    projection = model.layers[0].attention.projection
    if not isinstance(projection, GQAConfig):
        raise Unfit(f"projection is of kind '{getattr(projection, 'kind', None)}', there 'gqa'")
    return projection


def _activation(name: str) -> str:
    if name not in ACTIVATIONS:
        raise Unfit(f"activation '{name}' is not known; known: {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]


def read_rope(hf: HFConfig, given: dict[str, Any] | None = None) -> dict[str, Any]:
    """Fields of RotaryConfig, from transformers 5's `rope_parameters` or from `rope_theta` and `rope_scaling` before it.

    `given`: one of several sets of parameters, where layers differ.
    """
    if given is None:
        given = hf.get("rope_scaling") or hf.get("rope_parameters") or {}
    theta = given.get("rope_theta") or hf["rope_theta"]
    kind = given.get("rope_type") or given.get("type") or "default"
    for factor in (hf.get("partial_rotary_factor"), None if kind == "proportional" else given.get("partial_rotary_factor")):
        if factor not in (None, 1):
            raise Unfit(f"partial_rotary_factor is {factor}, which its own model does not apply")
    if kind == "default":
        return {"theta": theta}
    if kind not in SCALINGS:
        raise Unfit(f"rope type '{kind}' is not known; known: default, {', '.join(SCALINGS)}")
    if kind == "proportional":
        if given.get("factor", 1) != 1:
            raise Unfit(f"rope type 'proportional' has a factor ({given['factor']}), which we do not apply")
        given = {"partial_rotary_factor": 1.0, **given}
    longest = hf["max_position_embeddings"]
    original = hf.get("original_max_position_embeddings") or given.get("original_max_position_embeddings") or longest
    given = {**given, "original_max_position_embeddings": original}
    scaling = {ours: given[theirs] for ours, theirs in SCALINGS[kind].items() if given.get(theirs) is not None}
    if kind == "dynamic":  # it only sets in past `max_position_embeddings`, where our model ends
        scaling |= {"original_length": longest, "length": longest}
    if kind == "yarn":
        scaling.setdefault("factor", longest / scaling["original_length"])
        if (factor := _yarn_attention_factor(given, scaling["factor"])) is not None:
            scaling["attention_factor"] = factor
    return {"theta": theta, "scaling": {"kind": kind, **scaling}}


def _yarn_attention_factor(given: dict[str, Any], factor: float) -> float | None:
    if given.get("attention_factor") is not None:
        return given["attention_factor"]
    above, below = given.get("mscale"), given.get("mscale_all_dim")
    if not above or not below:
        return None
    return (0.1 * above * math.log(factor) + 1) / (0.1 * below * math.log(factor) + 1) if factor > 1 else 1.0


def write_rope(rope: RotaryConfig) -> HFConfig:
    """Both forms: `rope_parameters`, and `rope_theta` with `rope_scaling` for readers that are older."""
    parameters = rope_parameters(rope)
    fields: HFConfig = {"rope_theta": rope.theta, "rope_parameters": parameters}
    if rope.scaling is not None:
        fields["rope_scaling"] = {key: value for key, value in parameters.items() if key != "rope_theta"}
    return fields


def rope_parameters(rope: RotaryConfig) -> dict[str, Any]:
    """One set of transformers' `rope_parameters`."""
    parameters: dict[str, Any] = {"rope_type": "default", "rope_theta": rope.theta}
    if (scaling := rope.scaling) is not None:
        values = {theirs: getattr(scaling, ours) for ours, theirs in SCALINGS[scaling.kind].items()}
        parameters |= {"rope_type": scaling.kind} | {key: value for key, value in values.items() if value is not None}
    return parameters


def read_windows(hf: HFConfig, windowed: Callable[[int], bool]) -> list[int | None]:
    """Each layer's window, None where it sees everything; `windowed` tells of a layer whose type config.json does not spell out.

    Both sides count the query itself as one of the window.
    """
    count = hf["num_hidden_layers"]
    types: Sequence[str] = hf.get("layer_types") or ["sliding_attention" if windowed(i) else "full_attention" for i in range(count)]
    if len(types) != count:
        raise Unfit(f"layer_types has {len(types)} entries for {count} layers (num_hidden_layers)")
    if unknown := set(types) - {"full_attention", "sliding_attention"}:
        raise Unfit(f"layer_types has '{min(unknown)}'; known: full_attention, sliding_attention")
    size = hf.get("sliding_window")
    if size is None and "sliding_attention" in types:
        raise Unfit("layer_types has sliding_attention, but sliding_window is not set")
    return [size if kind == "sliding_attention" else None for kind in types]


def layer_windows(model: ModelConfig) -> list[int | None]:
    """Each layer's window, None where it sees everything; that of a reader is that of the memory it reads."""
    memories = [model.layers[source].attention.memory for source in model.sources]
    return [memory.size if isinstance(memory, WindowConfig) else None for memory in memories]


def write_windows(model: ModelConfig) -> HFConfig:
    """`layer_types`, and `sliding_window`, which is a number even where no layer has a window."""
    windows = layer_windows(model)
    return {
        "layer_types": ["full_attention" if window is None else "sliding_attention" for window in windows],
        "sliding_window": next(filter(None, windows), model.max_length),
    }
