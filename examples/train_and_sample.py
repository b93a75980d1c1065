"""mnemax as a library: configure, train and decode a small model, and count the bytes that it remembers.

    uv run python examples/train_and_sample.py

Reads the embedded corpus and keeps nothing on disk.
"""

import time

from mnemax import Generator, RunConfig, Sampling
from mnemax.data.pipeline import train_iterator
from mnemax.data.tokenizers import load_tokenizer
from mnemax.evaluation.accounting import layer_costs, parameters, state_bytes
from mnemax.models.generate import Speed
from mnemax.training.step import init_state, make_train_step

CONTEXT = 256

# What a YAML file holds, as a dictionary. Three layers remember the last 32 tokens, the fourth all of them.
run = RunConfig.model_validate(
    {
        "name": "example",
        "steps": 120,
        "model": {
            "width": 96,
            "vocab_size": 1024,
            "max_length": CONTEXT,
            "dtype": "float32",
            "layer": {
                "attention": {
                    "projection": {"kind": "gqa", "heads": 4, "kv_heads": 2, "head_width": 24},
                    "memory": {"kind": "window", "size": 32},
                },
                "feedforward": {"kind": "glu", "width": 256},
            },
            "stages": [{"layers": [{}, {}, {}, {"attention": {"memory": {"kind": "full"}}}]}],
        },
        "data": {"tokenizer": {"kind": "embedded", "vocab_size": 1024}, "sequence_length": 128, "batch_size": 8},
        "optimizer": {"peak_lr": 5e-3},
    }
)


def main() -> None:
    tokenizer = load_tokenizer(run.data.tokenizer)
    print(f"{parameters(run.model):,} parameters")
    for i, cost in enumerate(layer_costs(run.model, CONTEXT)):
        print(f"layer {i}, {cost.layer.attention.memory}: {cost.state_bytes:,} bytes of decode state")

    # The whole of training: a state, a pure jitted step, an endless iterator of batches. A step takes [micro-batches, rows, T].
    state, step, batches = init_state(run), make_train_step(run), train_iterator(run.data, tokenizer, run.seed)
    begin = time.perf_counter()
    for i in range(run.steps):
        state, sums = step(state, {name: rows[None] for name, rows in next(batches).items()})
        if i == 0 or (i + 1) % 40 == 0:
            print(f"step {i + 1}: {float(sums['loss'] / sums['tokens']):.3f} nats a token, {time.perf_counter() - begin:.1f} s")

    generator, speed = Generator(run.model, state.params, Sampling(temperature=0.8)), Speed()
    prompt = "MACBETH.\n"
    (new,) = generator.generate([tokenizer.encode(prompt)], 100, speed=speed)
    print(prompt + tokenizer.decode(new))
    print(f"decode state of these tokens: {speed.state_bytes:,} bytes; of {CONTEXT} tokens: {state_bytes(run.model, 1, CONTEXT):,}")


if __name__ == "__main__":
    main()
