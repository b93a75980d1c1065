"""Where numbers go: metrics.jsonl (the record that resuming and reports read), TensorBoard, Weights & Biases, and a picture."""

import json
import math
from pathlib import Path
from typing import Any, Protocol

from mnemax.configs.schema import LogConfig
from mnemax.errors import UserError
from mnemax.files import writing

type Record = dict[str, float]


class Writer(Protocol):
    """A place for scalars."""

    def write(self, split: str, step: int, values: Record) -> None: ...

    def close(self) -> None: ...


class JsonLines:
    """One line a record: {"split": "train", "step": 7, "loss": ...}. Steps after `resumed` are forgotten on opening."""

    def __init__(self, path: Path, resumed: int):
        kept = [line for line in read(path) if line["step"] <= resumed] if resumed else []
        temporary = path.with_suffix(".tmp")
        temporary.write_text("".join(json.dumps(line) + "\n" for line in kept))
        temporary.replace(path)
        self.file = path.open("a")

    def write(self, split: str, step: int, values: Record) -> None:
        self.file.write(json.dumps({"split": split, "step": step, **values}) + "\n")

    def flush(self) -> None:
        self.file.flush()

    def close(self) -> None:
        self.file.close()


class TensorBoard:
    """Event files under `tensorboard/`."""

    def __init__(self, folder: Path):
        from tensorboardX import SummaryWriter

        self.writer = SummaryWriter(str(folder))

    def write(self, split: str, step: int, values: Record) -> None:
        for name, value in values.items():
            self.writer.add_scalar(f"{split}/{name}", value, step)

    def close(self) -> None:
        self.writer.close()


class WandB:
    """A Weights & Biases run."""

    def __init__(self, project: str, name: str, config: dict[str, Any], folder: Path):
        try:
            import wandb
        except ImportError as error:
            raise UserError("log.wandb needs the extra: uv sync --extra wandb.") from error
        self.run = wandb.init(project=project, name=name, config=config, dir=folder)

    def write(self, split: str, step: int, values: Record) -> None:
        self.run.log({f"{split}/{name}": value for name, value in values.items()}, step=step)

    def close(self) -> None:
        self.run.finish()


class Metrics:
    """All the writers of a run; each method raises UserError if the folder cannot be written."""

    def __init__(self, folder: Path, log: LogConfig, name: str, config: dict[str, Any], resumed: int):
        self.path = folder / "metrics.jsonl"
        with writing(self.path):
            self.lines = JsonLines(self.path, resumed)
        self.others: list[Writer] = []
        if log.wandb is not None:
            self.others.append(WandB(log.wandb, name, config, folder))
        if log.tensorboard:
            self.others.append(TensorBoard(folder / "tensorboard"))

    def write(self, split: str, step: int, values: Record) -> None:
        with writing(self.path):
            for writer in (self.lines, *self.others):
                writer.write(split, step, values)

    def flush(self) -> None:
        with writing(self.path):
            self.lines.flush()

    def close(self) -> None:
        with writing(self.path):
            for writer in (*self.others, self.lines):
                writer.close()


def read(path: Path) -> list[dict[str, Any]]:
    """The records of a metrics.jsonl; a last line cut off by a kill is dropped."""
    records = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return records


def bits_per_byte(nll: float, bytes_: float) -> float:
    """Nats summed over tokens, as bits for each byte of the text they stand for."""
    return nll / math.log(2) / bytes_ if bytes_ else math.nan


def plot_curves(folder: Path, title: str) -> Path:
    """Draws loss and learning rate of metrics.jsonl as curves.png."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    records = read(folder / "metrics.jsonl")
    figure, (loss, rate) = plt.subplots(2, 1, figsize=(8, 6), height_ratios=[3, 1], sharex=True, layout="constrained")
    for split, style in (("train", {"lw": 0.8, "alpha": 0.7}), ("validation", {"marker": "o", "ms": 4})):
        points = [(r["step"], r["bits_per_byte"]) for r in records if r["split"] == split and r.get("bits_per_byte") is not None]
        if points:
            loss.plot(*zip(*points, strict=True), label=f"{split} ({points[-1][1]:.3f})", **style)
    train = [r for r in records if r["split"] == "train"]
    rate.plot([r["step"] for r in train], [r["lr"] for r in train], color="tab:green")
    shown = sorted(r["bits_per_byte"] for r in train if math.isfinite(r["bits_per_byte"]))
    if shown:
        loss.set_ylim(top=shown[int(0.97 * (len(shown) - 1))] * 1.02)
    loss.set(title=title, ylabel="bits a byte")
    rate.set(xlabel="step", ylabel="learning rate")
    loss.grid(alpha=0.3)
    loss.legend()
    figure.savefig(folder / "curves.png", dpi=130)
    plt.close(figure)
    return folder / "curves.png"
