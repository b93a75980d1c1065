"""DeepSeek-V3 with dense layers alone (DeepSeek-AI 2024, arXiv 2412.19437): multi-head latent attention."""

from typing import Any

from mnemax.configs.schema import LayerConfig, ModelConfig
from mnemax.layers.projections.mla import MLAConfig
from mnemax.models.hf.family import Family, HFConfig, Unfit
from mnemax.models.hf.fields import DEFAULTS, NAMES, read_block, read_model, read_rope, write_rope, write_sizes

LATENT_EPS = 1e-6  # of the norms on latents, whatever rms_norm_eps is


def read(hf: HFConfig) -> dict[str, Any]:
    count, dense = hf["num_hidden_layers"], hf["first_k_dense_replace"]
    if dense < count:
        raise Unfit(f"layers from first_k_dense_replace ({dense}) on are mixtures of experts, and all of ours ({count}) are dense")
    if hf["rms_norm_eps"] != LATENT_EPS:
        raise Unfit(f"rms_norm_eps is {hf['rms_norm_eps']}, but {LATENT_EPS} on latents, and ours is one for all norms")
    if hf["attention_bias"]:
        raise Unfit("attention_bias is true, and our latent attention has no biases")
    if not hf["rope_interleave"]:
        raise Unfit("rope_interleave is false; only rotated pairs that stand side by side can be read")
    if (hf.get("rope_scaling") or hf.get("rope_parameters") or {}).get("mscale_all_dim"):
        raise Unfit("rope_parameters.mscale_all_dim is set, which multiplies the logits by a number that we do not read")
    projection = {
        "kind": "mla",
        "heads": hf["num_attention_heads"],
        "latent_width": hf["kv_lora_rank"],
        "query_latent": hf["q_lora_rank"],
        "nope_width": hf["qk_nope_head_dim"],
        "rope_width": hf["qk_rope_head_dim"],
        "value_width": hf["v_head_dim"],
        "rope": read_rope(hf),
    }
    return read_model(hf, [read_block(hf, projection)] * count)


def write(model: ModelConfig) -> HFConfig:
    projection = model.layers[0].attention.projection
    if not isinstance(projection, MLAConfig):
        raise Unfit(f"projection is of kind '{getattr(projection, 'kind', None)}', there 'mla'")
    return {
        **write_sizes(model),
        **write_rope(projection.rope),
        "num_attention_heads": projection.heads,
        "num_key_value_heads": projection.heads,
        "kv_lora_rank": projection.latent_width,
        "q_lora_rank": projection.query_latent,
        "qk_nope_head_dim": projection.nope_width,
        "qk_rope_head_dim": projection.rope_width,
        "v_head_dim": projection.value_width,
        "attention_bias": False,
        "rope_interleave": True,
        "first_k_dense_replace": len(model.layers),
        "num_nextn_predict_layers": 0,
    }


def layer_names(layer: LayerConfig) -> dict[str, str]:
    """Queries are made from a latent, or from the layer's input."""
    direct = getattr(layer.attention.projection, "query_latent", None) is None
    return {"attention.projection.w_q": f"model.layers.{{i}}.self_attn.{'q_proj' if direct else 'q_b_proj'}.weight"}


def paired(layer: LayerConfig) -> dict[str, int]:
    """The rotated parts of queries and of the key."""
    projection = layer.attention.projection
    assert isinstance(projection, MLAConfig)  # or the family would not hold it
    return dict.fromkeys(("attention.projection.w_q", "attention.projection.w_kr"), projection.rope_width)


FAMILY = Family(
    architecture="DeepseekV3ForCausalLM",
    model_type="deepseek_v3",
    defaults={
        **DEFAULTS,
        "first_k_dense_replace": 3,
        "hidden_size": 7168,
        "intermediate_size": 18432,
        "kv_lora_rank": 512,
        "max_position_embeddings": 4096,
        "num_attention_heads": 128,
        "num_hidden_layers": 61,
        "q_lora_rank": 1536,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "rope_interleave": True,
        "v_head_dim": 128,
        "vocab_size": 129_280,
    },
    names=NAMES
    | {
        "attention.projection.w_dq": "model.layers.{i}.self_attn.q_a_proj.weight",
        "attention.projection.q_norm.scale": "model.layers.{i}.self_attn.q_a_layernorm.weight",
        "attention.projection.w_c": "model.layers.{i}.self_attn.kv_a_proj_with_mqa.weight",
        "attention.projection.w_kr": "model.layers.{i}.self_attn.kv_a_proj_with_mqa.weight",
        "attention.projection.c_norm.scale": "model.layers.{i}.self_attn.kv_a_layernorm.weight",
        "attention.projection.u_k": "model.layers.{i}.self_attn.kv_b_proj.weight",
        "attention.projection.u_v": "model.layers.{i}.self_attn.kv_b_proj.weight",
    },
    read=read,
    write=write,
    layer_names=layer_names,
    paired=paired,
)
