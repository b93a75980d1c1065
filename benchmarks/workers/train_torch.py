"""transformers' Llama stepped by torch on the CPU: fp32 weights, fused AdamW, SDPA attention, autocast for bfloat16 compute.

python benchmarks/workers/train_torch.py --dtype float32 [--compile]
"""

import argparse
import os
import time

import shape
import torch
import transformers
from pipe import Pipe

options = argparse.ArgumentParser()
options.add_argument("--dtype", choices=["float32", "bfloat16"], required=True)
options.add_argument("--compile", action="store_true")
options = options.parse_args()

pipe = Pipe()
torch.manual_seed(0)
torch.set_num_threads(os.cpu_count())

config = transformers.LlamaConfig(
    hidden_size=shape.WIDTH,
    num_hidden_layers=shape.LAYERS,
    num_attention_heads=shape.HEADS,
    num_key_value_heads=shape.KV_HEADS,
    head_dim=shape.HEAD,
    intermediate_size=shape.MLP,
    vocab_size=shape.VOCABULARY,
    max_position_embeddings=shape.LENGTH,
    tie_word_embeddings=False,
    use_cache=False,
    attn_implementation="sdpa",
)
model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).train()
forward = torch.compile(model) if options.compile else model
optimizer = torch.optim.AdamW(model.parameters(), lr=shape.LEARNING_RATE, fused=True)
tokens = torch.randint(shape.VOCABULARY, (shape.BATCH, shape.LENGTH))


def step() -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16, enabled=options.dtype == "bfloat16"):
        loss = forward(input_ids=tokens, labels=tokens).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), shape.GRADIENT_CLIP)
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


while request := pipe.receive():
    start = time.perf_counter()
    for _ in range(request["steps"]):
        loss = step()
    seconds = time.perf_counter() - start
    pipe.answer(
        tokens=request["steps"] * tokens.numel(),
        seconds=seconds,
        loss=loss.item(),
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        versions={"torch": torch.__version__, "transformers": transformers.__version__},
    )
