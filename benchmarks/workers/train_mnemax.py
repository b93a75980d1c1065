"""mnemax's own training step on random tokens.

python benchmarks/workers/train_mnemax.py model.dtype=float32
"""

import sys
import time
from pathlib import Path

import jax
import numpy as np
import shape
from pipe import Pipe

from mnemax.configs.load import load_run
from mnemax.evaluation.accounting import parameters
from mnemax.launch.mesh import make_mesh, put_batch
from mnemax.training.step import init_state, make_train_step

pipe = Pipe()
run = load_run(str(Path(__file__).with_suffix(".yaml")), sys.argv[1:])
mesh = make_mesh(run.mesh)
jax.set_mesh(mesh)
state, step = init_state(run), make_train_step(run)
tokens = np.random.default_rng(0).integers(shape.VOCABULARY, size=(shape.BATCH, shape.LENGTH + 1), dtype=np.int32)
batch = {
    "inputs": tokens[:, :-1],
    "targets": tokens[:, 1:],
    "positions": np.broadcast_to(np.arange(shape.LENGTH, dtype=np.int32), (shape.BATCH, shape.LENGTH)),
    "weights": np.ones((shape.BATCH, shape.LENGTH), np.float32),
}

while request := pipe.receive():
    start = time.perf_counter()
    sums = {}
    for _ in range(request["steps"]):
        state, sums = step(state, put_batch(batch, mesh, micro=1))
    jax.block_until_ready(state)
    seconds = time.perf_counter() - start
    pipe.answer(
        tokens=request["steps"] * batch["inputs"].size,
        seconds=seconds,
        loss=float(sums["nll"] / sums["tokens"]),
        parameters=parameters(run.model),
        versions={"jax": jax.__version__},
    )
