"""Write tiny random Hugging Face models with their logits, which the tests import and export without torch.

    python scripts/make_hf_golden.py [tests/golden/hf]

Needs torch and transformers (dependency group `torch`). Each folder is what `save_pretrained` writes, and logits.npz beside it:
`tokens` int [1, 28] and transformers' `logits` float32 [1, 28, V] in eager attention and float32 on these (maybe bfloat16) weights.
"""

import os
import sys
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch
import transformers

OUT = Path(__file__).parents[1] / "tests" / "golden" / "hf"
LENGTH = 28
SIZES = {
    "hidden_size": 16,
    "intermediate_size": 12,
    "max_position_embeddings": 32,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "vocab_size": 20,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
ROPE = {"num_hidden_layers": 1, "head_dim": 12}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 100.0,
    "factor": 8.0,
    "original_max_position_embeddings": 16,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 100.0,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
    "beta_fast": 1.0,
    "beta_slow": 0.1,
    "truncate": False,
}
MLA = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 8,
    "qk_nope_head_dim": 4,
    "qk_rope_head_dim": 6,
    "v_head_dim": 5,
    "first_k_dense_replace": 2,
    "num_mtp_layers": 0,
}
GEMMA4 = {
    "head_dim": 8,
    "global_head_dim": 16,
    "hidden_size_per_layer_input": 0,
    "sliding_window": 5,
    "rope_parameters": {
        "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
    },
}
# folder: configuration class, what differs from SIZES, how it is saved
CASES = {
    "llama": ("LlamaConfig", {"rms_norm_eps": 1e-5}, {"dtype": torch.float32, "max_shard_size": 5000}),
    "llama_bias": ("LlamaConfig", {"attention_bias": True, "head_dim": 6, "tie_word_embeddings": True}, {}),
    "llama_linear": ("LlamaConfig", {**ROPE, "rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1000.0}}, {}),
    "llama_dynamic": ("LlamaConfig", {**ROPE, "rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 100.0}}, {}),
    "llama_yarn": ("LlamaConfig", {**ROPE, "rope_parameters": YARN}, {}),
    "llama_llama3": ("LlamaConfig", {**ROPE, "rope_parameters": LLAMA3}, {}),
    "mistral": ("MistralConfig", {"sliding_window": 5}, {}),
    "qwen2": ("Qwen2Config", {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1}, {}),
    "qwen3": ("Qwen3Config", {"head_dim": 8, "tie_word_embeddings": True}, {}),
    "gemma2": (
        "Gemma2Config",
        {
            "head_dim": 8,
            "query_pre_attn_scalar": 12,
            "sliding_window": 5,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 4.0,
        },
        {},
    ),
    "gemma3": (
        "Gemma3TextConfig",
        {
            "head_dim": 8,
            "query_pre_attn_scalar": 8,
            "sliding_window": 5,
            "num_hidden_layers": 7,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            },
        },
        {},
    ),
    "olmo2": ("Olmo2Config", {}, {}),
    "deepseek_v3": ("DeepseekV3Config", {**MLA, "q_lora_rank": 10}, {}),
    "deepseek_v3_direct": ("DeepseekV3Config", {**MLA, "q_lora_rank": None, "tie_word_embeddings": True}, {}),
    "gemma4": (
        "Gemma4TextConfig",
        {
            **GEMMA4,
            "num_hidden_layers": 5,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention", "full_attention"],
            "num_kv_shared_layers": 2,
            "use_double_wide_mlp": True,
            "output_router_logits": True,  # or a tail without per-layer inputs fails (see mnemax/models/hf/gemma4.py)
        },
        {},
    ),
    "gemma4_keys": (
        "Gemma4TextConfig",
        {
            **GEMMA4,
            "layer_types": ["sliding_attention", "full_attention"],
            "attention_k_eq_v": True,
            "num_global_key_value_heads": 1,
            "final_logit_softcapping": 4.0,
        },
        {},
    ),
}


def main() -> None:
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else OUT
    for number, (name, (kind, fields, how)) in enumerate(CASES.items()):
        write(out / name, getattr(transformers, kind)(**SIZES | fields), seed=number, **{"dtype": torch.bfloat16, **how})
    (out / "VERSIONS").write_text(f"torch {torch.__version__}\ntransformers {transformers.__version__}\n")


def write(folder: Path, config, seed: int, dtype: torch.dtype, **how) -> None:
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32).eval()
    with torch.no_grad():
        for weight in model.parameters():  # norms and biases away from 1 and 0, or nobody would miss them
            weight += 0.3 * torch.randn_like(weight)
            weight.copy_(weight.to(dtype))  # what is saved is what the logits come from
    tokens = torch.randint(3, config.vocab_size, (1, LENGTH))
    with torch.no_grad():
        logits = model(tokens).logits
    folder.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(folder / "logits.npz", tokens=tokens.numpy(), logits=logits.numpy())
    model.to(dtype).save_pretrained(folder, **how)


if __name__ == "__main__":
    main()
