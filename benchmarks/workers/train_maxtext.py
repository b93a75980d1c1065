"""MaxText's own training loop, paused between steps: `train_loop` runs as shipped, and only waits here before each iteration.

python benchmarks/workers/train_maxtext.py base_output_directory=OUT dtype=float32 [more MaxText flags]
"""

import importlib.metadata
import sys
import time

import shape
from pipe import Pipe


def main(*flags: str) -> None:
    pipe = Pipe()

    import jax
    from flax import nnx
    from maxtext.trainers.pre_train import train
    from maxtext.utils import exceptions

    iterate = train.training_loop_iteration
    steps, left, start, metrics = 0, 0, 0.0, None

    def paused_iterate(device_state, *rest):
        nonlocal steps, left, start, metrics
        if left == 0:
            if metrics is not None:
                jax.block_until_ready((device_state["state"], metrics))
                pipe.answer(
                    tokens=steps * shape.BATCH * shape.LENGTH,
                    seconds=time.perf_counter() - start,
                    loss=float(metrics["scalar"]["learning/loss"]),
                    parameters=parameters(device_state["state"]),
                    versions={"maxtext": importlib.metadata.version("maxtext"), "jax": jax.__version__},
                )
            request = pipe.receive()
            if request is None:
                raise exceptions.StopTraining("the driver has closed the conversation")
            steps = left = request["steps"]
            start = time.perf_counter()
        left -= 1
        metrics = iterate(device_state, *rest)
        return metrics

    def parameters(state) -> int:
        return sum(leaf.size for leaf in jax.tree.leaves(nnx.filter_state(state.model, nnx.Param)))

    train.training_loop_iteration = paused_iterate
    train.main(["train", *shape.MAXTEXT_FLAGS, "steps=100000", *flags])


if __name__ == "__main__":
    main(*sys.argv[1:])
