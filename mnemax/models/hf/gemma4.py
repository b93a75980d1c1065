"""Gemma-4 text, without experts and per-layer inputs (as transformers has it): a tail of layers that read others' memories.

The last `num_kv_shared_layers` layers write nothing. Each reads what the last layer before them of its type, with a window or
without, has written. Layers without a window have a head width of their own, and with `attention_k_eq_v` their keys are values too.
"""

from typing import Any

from mnemax.configs.schema import ModelConfig
from mnemax.layers.feedforward.glu import GLUConfig
from mnemax.layers.projections.gqa import GQAConfig
from mnemax.layers.projections.shared import SharedConfig
from mnemax.layers.rotary import RotaryConfig
from mnemax.models.hf.family import Family, HFConfig, Unfit
from mnemax.models.hf.fields import (
    DEFAULTS,
    QK_NORM_NAMES,
    layer_windows,
    read_layer,
    read_model,
    read_rope,
    read_windows,
    rope_parameters,
    write_sizes,
    write_windows,
)
from mnemax.models.hf.gemma2 import GEMMA_NAMES

LACKING = ("enable_moe_block", "hidden_size_per_layer_input", "use_bidirectional_attention")
BY_LAYER = {"head_dim", "num_key_value_heads"}


def read(hf: HFConfig) -> dict[str, Any]:
    if unfit := next((field for field in LACKING if hf[field]), None):
        raise Unfit(f"{unfit} is {hf[unfit]}, and our model has nothing of the sort")
    count, shared = hf["num_hidden_layers"], hf["num_kv_shared_layers"]
    windows = read_windows(hf, lambda i: (i + 1) % 6 != 0)
    windows[-1] = None  # whatever its type is said to be
    if hf["attention_k_eq_v"] and shared:
        raise Unfit(
            f"attention_k_eq_v is true and num_kv_shared_layers is {shared}, but our readers of keys that are values norm them by "
            "scales of their own"
        )
    first = count - shared
    tail = {window is None for window in windows[first:]}
    writers = {full: i for i, window in enumerate(windows[:first]) if (full := window is None) in tail}
    layers = []
    for i, window in enumerate(windows):
        full, reads = window is None, i >= first
        if reads and full not in writers:
            raise Unfit(f"num_kv_shared_layers is {shared}, and no layer before these is of the type of layer {i} (layer_types)")
        layer = _read_layer(hf, i, window, 2 if reads and hf["use_double_wide_mlp"] else 1)
        if reads or i == writers.get(full):
            layer["attention"]["read" if reads else "write"] = "full" if full else "sliding"
        layers.append(layer)
    return read_model(hf, layers, {"placement": "both"}, embed_scale="sqrt_width", logit_softcap=hf["final_logit_softcapping"])


def _read_layer(hf: HFConfig, i: int, window: int | None, widths: int) -> dict[str, Any]:
    full = window is None
    own = _by_layer(hf, i, full)
    hf = hf | own | {"hidden_act": hf["hidden_activation"], "intermediate_size": widths * hf["intermediate_size"]}
    rope = read_rope(hf, hf["rope_parameters"]["full_attention" if full else "sliding_attention"])
    layer = read_layer(hf, rope=rope, window=window, qk_norm="head", value_norm=True, scale=1.0)
    if full and hf["attention_k_eq_v"]:
        projection = layer["attention"]["projection"]
        if projection.pop("qkv_bias") or projection.pop("output_bias"):
            raise Unfit("attention_k_eq_v and attention_bias are true, and our keys that are values have no biases")
        projection |= {"kind": "shared", "share": "kv"}
    return layer


def _by_layer(hf: HFConfig, i: int, full: bool) -> HFConfig:
    """The fields of a layer that differ from the others': written out for each layer, or once for all without a window."""
    if (given := hf.get("per_layer_config")) is not None:
        own = given.get(str(i), {})
        if unknown := own.keys() - BY_LAYER:
            raise Unfit(f"per_layer_config has '{min(unknown)}' for layer {i}; known: {', '.join(sorted(BY_LAYER))}")
        return own
    if not full:
        return {}
    heads = hf["num_global_key_value_heads"] if hf["attention_k_eq_v"] else None
    return {"head_dim": hf["global_head_dim"]} | ({} if heads is None else {"num_key_value_heads": heads})


def write(model: ModelConfig) -> HFConfig:
    fields, windows = write_sizes(model), layer_windows(model)
    if windows[-1] is not None:
        raise Unfit(f"layers[{len(windows) - 1}].attention.memory is window, there full, as in every last layer")
    full = _projection(model, windows.index(None))
    near = next((_projection(model, i) for i, window in enumerate(windows) if window is not None), full)
    tail = 0
    for i, source in enumerate(model.sources):
        tail = 0 if source == i else tail + 1
    feedforward = model.layers[-1].feedforward
    same = isinstance(full, SharedConfig)
    return {
        **fields,
        **write_windows(model),
        "hidden_activation": fields["hidden_act"],
        "num_attention_heads": near.heads,
        "num_key_value_heads": near.kv_heads,
        "head_dim": near.head_width,
        "global_head_dim": full.head_width,
        "num_global_key_value_heads": full.kv_heads if same else None,
        "attention_k_eq_v": same,
        "attention_bias": isinstance(near, GQAConfig) and near.qkv_bias,
        "rope_parameters": {
            "full_attention": rope_parameters(full.rope or RotaryConfig()),
            "sliding_attention": rope_parameters(near.rope or RotaryConfig()),
        },
        "num_kv_shared_layers": tail,
        "use_double_wide_mlp": tail > 0 and isinstance(feedforward, GLUConfig) and feedforward.width > fields["intermediate_size"],
        "final_logit_softcapping": model.logit_softcap,
        "enable_moe_block": False,
        "hidden_size_per_layer_input": 0,
        # transformers 5.24 cuts a prompt to its last token where the tail begins, and fails there where a model has no per-layer
        # inputs. It does not cut where it is asked for the experts' choices, and a model without experts has none to give.
        **({"output_router_logits": True} if tail else {}),
    }


def _projection(model: ModelConfig, i: int) -> GQAConfig | SharedConfig:
    projection = model.layers[i].attention.projection
    if not isinstance(projection, GQAConfig | SharedConfig):
        raise Unfit(f"layers[{i}].attention.projection is of kind '{getattr(projection, 'kind', None)}', there 'gqa' or 'shared'")
    return projection


FAMILY = Family(
    architecture="Gemma4ForCausalLM",
    model_type="gemma4_text",
    defaults={
        **DEFAULTS,
        "attention_k_eq_v": False,
        "enable_moe_block": False,
        "final_logit_softcapping": None,
        "global_head_dim": 512,
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": 2304,
        "hidden_size_per_layer_input": 256,
        "intermediate_size": 9216,
        "max_position_embeddings": 131_072,
        "num_attention_heads": 8,
        "num_global_key_value_heads": None,
        "num_hidden_layers": 30,
        "num_key_value_heads": 4,
        "num_kv_shared_layers": 0,
        "rope_parameters": {
            "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1_000_000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
        },
        "sliding_window": 512,
        "tie_word_embeddings": True,
        "use_bidirectional_attention": None,
        "use_double_wide_mlp": False,
        "vocab_size": 262_144,
    },
    names=GEMMA_NAMES | QK_NORM_NAMES,
    read=read,
    write=write,
    constants={"model.layers.{i}.layer_scalar": 1.0},
)
