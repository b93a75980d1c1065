"""Progress of training on the console: a live bar on a terminal, plain lines elsewhere."""

import jax
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column

from mnemax.configs.schema import RunConfig
from mnemax.evaluation import accounting


class TrainProgress:
    """Shows step, loss, bits a byte, tokens/s, MFU where the device is known, and time left."""

    def __init__(self, run: RunConfig, step: int, mesh: jax.sharding.Mesh, console: Console):
        self.console = console
        self.flops = accounting.train_flops(run.model, run.data.sequence_length)
        peak = accounting.peak_flops(mesh.devices.flat[0])
        self.peak = None if peak is None else peak * mesh.size
        self.progress = Progress(
            BarColumn(bar_width=24),  # what shrinks on a narrow terminal
            MofNCompleteColumn(table_column=Column(no_wrap=True)),
            TextColumn("{task.fields[status]}"),
            TimeRemainingColumn(table_column=Column(no_wrap=True)),
            TextColumn("left"),
            console=console,
            disable=not console.is_terminal,
        )
        self.task = self.progress.add_task(run.name, total=run.steps, completed=step, status="compiling")

    def __enter__(self) -> "TrainProgress":
        self.progress.start()
        return self

    def __exit__(self, *error) -> None:
        self.progress.stop()

    def update(self, step: int, record: dict[str, float]) -> None:
        speed = record["tokens_per_second"]
        parts = [f"loss {record['loss']:.3f}", f"{record['bits_per_byte']:.3f} bits/byte", f"{accounting.human(speed)} tokens/s"]
        if self.peak is not None:
            parts.append(f"MFU {speed * self.flops / self.peak:.1%}")
        if record["skipped"]:
            parts.append(f"[yellow]{int(record['skipped'])} skipped[/]")
        self.progress.update(self.task, completed=step, status=" · ".join(parts))
        if not self.console.is_terminal:
            self.console.print(f"step {step}: {' · '.join(parts)}", highlight=False)

    def validation(self, step: int, loss: float, bits: float) -> None:
        self.console.print(f"step {step}: validation loss {loss:.4f} nats/token, [bold]{bits:.4f} bits/byte[/]", highlight=False)
