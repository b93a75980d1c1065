"""How prefill time grows with the prompt, by memory: seconds, and the exponent of a fitted power law.

uv run python benchmarks/prefill.py
"""

import time
from typing import Annotated

import jax
import numpy as np
import typer

from mnemax.configs.schema import ModelConfig
from mnemax.models.params import bind, init_params

KVM = {"kind": "kvm", "chunk": 64, "rotated": 16}
MEMORIES = {
    "kvm, 64 slots": KVM | {"growth": {"kind": "fixed", "slots": 64}},
    "kvm, 8 t^0.5": KVM | {"growth": {"kind": "power", "factor": 8, "power": 0.5, "least": 64}},
    "kvm, 2 t^0.75": KVM | {"growth": {"kind": "power", "factor": 2, "power": 0.75, "least": 64}},
    "full": {"kind": "full"},
}


def model(memory: dict, longest: int) -> ModelConfig:
    """Two layers that do little but attend."""
    attention = {
        "projection": {"kind": "gqa", "heads": 4, "kv_heads": 2, "head_width": 32, "rope": {"fraction": 0.5}},
        "memory": memory,
        "retention": {"kind": "merge_gate"} if memory["kind"] == "kvm" else None,
    }
    layers = [{"attention": attention, "feedforward": {"kind": "glu", "width": 64}}]
    return ModelConfig.model_validate(
        {"width": 64, "vocab_size": 256, "max_length": longest, "dtype": "float32", "stages": [{"repeat": 2, "layers": layers}]}
    )


def seconds(config: ModelConfig, length: int, repeats: int) -> float:
    """The fastest of `repeats` prefills of one row into an empty decode state."""
    params = init_params(config, jax.random.key(0))
    tokens = np.random.default_rng(0).integers(0, config.vocab_size, (1, length), np.int32)

    @jax.jit
    def prefill(params, tokens):
        decoder = bind(config, params)
        x, state, _ = decoder.hidden(tokens, None, decoder.init_state(1, length))
        return x[:, -1], state

    jax.block_until_ready(prefill(params, tokens))
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        jax.block_until_ready(prefill(params, tokens))
        times.append(time.perf_counter() - begin)
    return min(times)


def main(
    lengths: Annotated[list[int], typer.Option("--length", help="tokens of the prompt")] = [1024, 2048, 4096, 8192, 16384],  # noqa: B006
    repeats: int = 3,
) -> None:
    """Print a line a memory: seconds at every length, and the exponents over all lengths and over the last doubling."""
    typer.echo(f"{'memory':<16}" + "".join(f"{length:>10}" for length in lengths) + f"{'exponent':>10}{'at the end':>12}")
    for name, memory in MEMORIES.items():
        times = [seconds(model(memory, max(lengths)), length, repeats) for length in lengths]
        fit, last = (np.polyfit(np.log(lengths[-n:]), np.log(times[-n:]), 1)[0] for n in (len(lengths), 2))
        typer.echo(f"{name:<16}" + "".join(f"{t:>10.4f}" for t in times) + f"{fit:>10.2f}{last:>12.2f}")


if __name__ == "__main__":
    typer.run(main)
