"""mnemax's own decoding of an imported model, greedy; prefill and decode seconds are measured apart.

python benchmarks/workers/decode_mnemax.py --model HF_FOLDER --dtype float32
"""

import argparse

import jax
from pipe import Pipe

from mnemax.models import hf
from mnemax.models.generate import Generator, Sampling, Speed

parser = argparse.ArgumentParser()
parser.add_argument("--model", required=True)
parser.add_argument("--dtype", choices=["float32", "bfloat16"], required=True)
options = parser.parse_args()

pipe = Pipe()
config, params = hf.load(options.model)
generator = Generator(config.model_copy(update={"dtype": options.dtype}), params, Sampling(temperature=0))
del params

while request := pipe.receive():
    speed = Speed()
    generated = generator.generate(request["prompts"], request["new"], speed=speed)
    pipe.answer(
        tokens=speed.new_tokens,
        seconds=speed.decode_seconds,
        prefill_seconds=speed.prefill_seconds,
        generated=generated,
        versions={"jax": jax.__version__},
    )
