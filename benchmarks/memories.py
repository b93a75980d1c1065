"""Training speed of memories beside full attention, by the length of rows; turns are interleaved (docs/benchmarks.md).

uv run python benchmarks/memories.py 1024 4096
"""

import statistics
import sys
import time

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

from mnemax.configs.schema import RunConfig
from mnemax.training.step import init_state, make_train_step

TOKENS, ROUNDS = 4096, 5
GQA = {"kind": "gqa", "heads": 4, "kv_heads": 4, "head_width": 64}
DELTA = {"kind": "gated_delta", "heads": 4, "value_heads": 4, "head_width": 64, "value_width": 64}
ATTENTIONS = {
    "full attention": {"projection": GQA},
    "window 256": {"projection": GQA, "memory": {"kind": "window", "size": 256}},
    "gated delta rule": {"projection": DELTA, "memory": {"kind": "delta"}},
    "Mamba-2": {"projection": {"kind": "mamba2", "heads": 8, "state_width": 64}, "memory": {"kind": "linear"}},
    "gated retention": {"projection": {"kind": "gated_retention", "heads": 4, "head_width": 64}, "memory": {"kind": "linear"}},
}


def contender(attention: dict, length: int):
    """A function that takes a training step and gives its seconds: two layers of width 256, in float32."""
    layer = {"attention": attention, "feedforward": {"kind": "glu", "width": 512}}
    model = {"width": 256, "vocab_size": 256, "max_length": length, "dtype": "float32", "layer": layer}
    model["stages"] = [{"repeat": 2, "layers": [{}]}]
    rows = TOKENS // length
    data = {"sequence_length": length, "batch_size": rows, "sources": [{"kind": "embedded"}]}
    run = RunConfig.model_validate({"name": "speed", "steps": 1000, "model": model, "data": data})
    tokens = np.random.default_rng(0).integers(0, 256, (1, rows, length), np.int32)
    positions = np.broadcast_to(np.arange(length, dtype=np.int32), tokens.shape)
    batch = {"inputs": tokens, "targets": tokens, "positions": positions, "weights": np.ones(tokens.shape, np.float32)}
    state, step = init_state(run), make_train_step(run)

    def turn() -> float:
        nonlocal state
        begin = time.perf_counter()
        state, _ = step(state, batch)
        jax.block_until_ready(state)
        return time.perf_counter() - begin

    turn()  # compiles
    return turn


def main() -> None:
    table = Table("T", "memory", "tokens/s", "times full attention", "min..max")
    for length in map(int, sys.argv[1:] or ["1024", "4096"]):
        turns = {name: contender(attention, length) for name, attention in ATTENTIONS.items()}
        rounds = [{name: turn() for name, turn in turns.items()} for _ in range(ROUNDS)]
        for name in ATTENTIONS:
            seconds = statistics.median(one[name] for one in rounds)
            ratios = [one["full attention"] / one[name] for one in rounds]
            spread = f"{min(ratios):.2f}..{max(ratios):.2f}"
            table.add_row(f"{length}", name, f"{TOKENS / seconds:.0f}", f"{statistics.median(ratios):.2f}", spread)
    Console().print(table)


if __name__ == "__main__":
    main()
