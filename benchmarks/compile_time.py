"""CPU seconds that tracing and compiling a training step take, by depth and by plan of sharing (docs/benchmarks.md).

uv run python benchmarks/compile_time.py                     # for this machine
uv run --extra tpu python benchmarks/compile_time.py --topology v5e:2x2   # for one TPU of a pod that need not be there
"""

import os
import statistics
import time

import jax
import numpy as np
import typer
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from mnemax.configs.schema import RunConfig
from mnemax.training.step import init_state, make_train_step

READ, WINDOW = {"attention": {"read": "kv"}}, {"attention": {"memory": {"kind": "window", "size": 128}}}
WRITE, ONLY_WRITE = {"attention": {"write": "kv"}}, {"attention": {"write": "kv", "attends": False}, "feedforward": None}
PLANS = {
    "4 layers": [{"repeat": 4, "layers": [{}]}],
    "32 layers": [{"repeat": 32, "layers": [{}]}],
    "CLA2, 32 layers": [{"repeat": 16, "layers": [WRITE, READ]}],
    "CLA3, 33 layers": [{"repeat": 11, "layers": [WRITE, READ, READ]}],
    "YOCO, 32 layers": [{"repeat": 16, "layers": [WINDOW]}, {"layers": [ONLY_WRITE]}, {"repeat": 16, "layers": [READ]}],
}


def run(stages: list) -> RunConfig:
    attention = {"projection": {"kind": "gqa", "heads": 8, "kv_heads": 4, "head_width": 32}}
    layer = {"attention": attention, "feedforward": {"kind": "glu", "width": 512}}
    model = {"width": 256, "vocab_size": 4096, "max_length": 512, "layer": layer, "stages": stages}
    data = {"sources": [{"kind": "embedded"}], "sequence_length": 512, "batch_size": 8}
    return RunConfig.model_validate({"name": "compile", "steps": 10, "model": model, "data": data})


def seconds(config: RunConfig, mesh: Mesh) -> float:
    """CPU seconds from a configuration to a step compiled for the mesh; nothing is allocated."""
    jax.clear_caches()
    everywhere = NamedSharding(mesh, PartitionSpec())
    shape = (1, config.data.batch_size, config.data.sequence_length)
    ints = dict.fromkeys(("inputs", "targets", "positions", "segments"), jax.ShapeDtypeStruct(shape, "int32"))
    batch = ints | {"weights": jax.ShapeDtypeStruct(shape, "float32")}
    state = jax.eval_shape(lambda: init_state(config))
    state, batch = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=everywhere), (state, batch))
    with jax.set_mesh(mesh):
        begin = time.process_time()
        make_train_step(config).lower(state, batch).compile()
        return time.process_time() - begin


def one_device(topology: str | None) -> Mesh:
    """A mesh of one device: of this machine, or of a TPU topology."""
    if topology is None:
        devices = jax.devices()[:1]
    else:
        os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
        devices = topologies.get_topology_desc(topology, "tpu").devices[:1]
    return Mesh(np.array(devices).reshape(1, 1, 1), ("data", "fsdp", "tensor"), axis_types=(AxisType.Explicit,) * 3)


def main(rounds: int = 3, topology: str | None = None) -> None:
    """Print a line a plan: the median of CPU seconds, and its ratio to 32 plain layers, round by round in turn."""
    taken, mesh = {name: [] for name in PLANS}, one_device(topology)
    for _ in range(rounds):
        for name, stages in PLANS.items():
            taken[name].append(seconds(run(stages), mesh))
    plain = taken["32 layers"]
    for name, times in taken.items():
        ratios = [own / other for own, other in zip(times, plain, strict=True)]
        low, middle, high = min(ratios), statistics.median(ratios), max(ratios)
        typer.echo(f"{name:<16}{statistics.median(times):>8.2f} s{middle:>8.2f}x ({low:.2f}..{high:.2f})")


if __name__ == "__main__":
    typer.run(main)
