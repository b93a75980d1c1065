"""transformers' `generate` on the CPU, greedy: decode seconds are those of a whole generation less those of its first token.

python benchmarks/workers/decode_torch.py --model HF_FOLDER --dtype float32 --cache dynamic
"""

import argparse
import os
import time

import torch
import transformers
from pipe import Pipe

options = argparse.ArgumentParser()
options.add_argument("--model", required=True)
options.add_argument("--dtype", choices=["float32", "bfloat16"], required=True)
options.add_argument("--cache", choices=["dynamic", "static"], required=True)
options = options.parse_args()

pipe = Pipe()
torch.set_num_threads(os.cpu_count())
model = transformers.AutoModelForCausalLM.from_pretrained(options.model, dtype=options.dtype, local_files_only=True).eval()


@torch.inference_mode()
def generate(prompts: torch.Tensor, new: int) -> tuple[torch.Tensor, float]:
    start = time.perf_counter()
    tokens = model.generate(
        prompts,
        attention_mask=torch.ones_like(prompts),
        max_new_tokens=new,
        min_new_tokens=new,
        do_sample=False,
        cache_implementation=options.cache,
    )
    return tokens, time.perf_counter() - start


while request := pipe.receive():
    prompts = torch.tensor(request["prompts"])
    prefill = generate(prompts, 1)[1]
    tokens, seconds = generate(prompts, request["new"])
    pipe.answer(
        tokens=prompts.shape[0] * (request["new"] - 1),
        seconds=seconds - prefill,
        prefill_seconds=prefill,
        generated=tokens[:, prompts.shape[1] :].tolist(),
        versions={"torch": torch.__version__, "transformers": transformers.__version__},
    )
