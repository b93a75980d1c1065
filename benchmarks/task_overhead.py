"""What making a task's examples costs the training loop, beside a loop that reads one batch again and again (docs/benchmarks.md).

uv run python benchmarks/task_overhead.py mqar_tiny selective_copy_tiny
"""

import itertools
import statistics
import sys
import time
from collections.abc import Iterator

import jax
from rich.console import Console
from rich.table import Table

from mnemax.configs.load import load_run
from mnemax.data.pipeline import Batch, train_iterator
from mnemax.data.tokenizers import load_tokenizer
from mnemax.launch.mesh import make_mesh, put_batch
from mnemax.training.step import init_state, make_train_step

STEPS, ROUNDS = 20, 7


def measure(name: str) -> list[tuple[float, float]]:
    """Seconds a step of both loops, in turn; steps are dispatched and waited for as the trainer does."""
    run = load_run(name)
    with jax.set_mesh(mesh := make_mesh(run.mesh)):
        fresh = train_iterator(run.data, load_tokenizer(run.data.tokenizer), run.seed)
        state, step = init_state(run), make_train_step(run)

        def loop(batches: Iterator[Batch]) -> float:
            nonlocal state
            begin = time.perf_counter()
            for batch in itertools.islice(batches, STEPS):
                state, _ = step(state, put_batch(batch, mesh, run.training.accumulate))
            jax.block_until_ready(state)
            return (time.perf_counter() - begin) / STEPS

        same = itertools.repeat(next(fresh))
        loop(same)  # compiles
        return [(loop(fresh), loop(same)) for _ in range(ROUNDS)]


def main() -> None:
    table = Table("experiment", "new examples, ms", "the same batch, ms", "overhead", "min..max")
    for name in sys.argv[1:] or ["mqar_tiny"]:
        rounds = measure(name)
        over = [fresh / same - 1 for fresh, same in rounds]
        fresh, same = (1000 * statistics.median(column) for column in zip(*rounds, strict=True))
        table.add_row(name, f"{fresh:.1f}", f"{same:.1f}", f"{statistics.median(over):.1%}", f"{min(over):.1%}..{max(over):.1%}")
    Console().print(table)


if __name__ == "__main__":
    main()
