"""Progress of training on the console: a live bar on a terminal, plain lines elsewhere."""

import jax
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column

from mnemax.configs.schema import RunConfig
from mnemax.evaluation import accounting
from mnemax.training.metrics import Record


class TrainProgress:
    """Shows step, loss, bits a byte or accuracy, tokens/s, MFU where the device is known, and time left."""

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
        parts = [f"loss {record['loss']:.3f}", quality(record), f"{accounting.human(speed)} tokens/s"]
        if self.peak is not None:
            parts.append(f"MFU {speed * self.flops / self.peak:.1%}")
        if record["skipped"]:
            parts.append(f"[yellow]{int(record['skipped'])} skipped[/]")
        self.progress.update(self.task, completed=step, status=" · ".join(parts))
        if not self.console.is_terminal:
            self.console.print(f"step {step}: {' · '.join(parts)}", highlight=False)

    def validation(self, step: int, record: Record) -> None:
        loss = f"validation loss {record['loss']:.4f} nats/token"
        self.console.print(f"step {step}: {loss}, [bold]{quality(record, 4)}[/]", highlight=False)


def quality(record: Record, digits: int = 3) -> str:
    """Bits a byte of text; of a task, which is no text, the accuracy."""
    if "bits_per_byte" in record:
        return f"{record['bits_per_byte']:.{digits}f} bits/byte"
    return f"accuracy {record['accuracy']:.{digits}f}"
