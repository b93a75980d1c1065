"""What a frozen model recalls with a quarter or less of its tokens, by who chooses them (docs/architectures/gate.md).

A model is trained with full attention, and a retention gate is distilled into it, once with and once without its capacity loss.
Then the same weights decode with so many slots that each retention fills as it likes.

uv run python benchmarks/retentions.py mqar needles --seeds 3
uv run python benchmarks/retentions.py needles --share 8  # the same gates, distilled for a quarter, with an eighth
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from mnemax.evaluation.evaluate import evaluate
from mnemax.evaluation.report.statistics import estimate

# The experiment, what it is asked, tokens of a row.
TASKS = {
    "mqar": ("mqar_tiny", {"kind": "mqar", "vocab_size": 256, "length": 128, "pairs": 16, "random_fill": False}, 128),
    "needles": ("needle_tiny", {"kind": "needle", "length": 256, "keys": 4, "queries": 4}, 256),
}
CAPACITY_SHARE, SINKS, RECENT = 4, 4, 8
HEURISTICS = ("streaming", "random", "key_norm", "keydiff", "h2o", "tova")


def train(out: Path, *arguments: str) -> Path:
    """A finished run in the folder `out`."""
    resume = ["--resume"] if (out / "config.yaml").is_file() else []
    log = out.with_suffix(".log")
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as file:
        command = [sys.executable, "-m", "mnemax", "train", *arguments, "--out", str(out), *resume]
        subprocess.run(command, stdout=file, stderr=file, check=True)
    return out


def slots(budget: int, recent: int = RECENT) -> str:
    """The override that bounds every layer to `budget` slots, the latest `recent` tokens among them."""
    return f"layer.attention.memory={json.dumps({'kind': 'bounded', 'budget': budget, 'sinks': SINKS, 'recent': recent})}"


def run(name: str, seed: int, folder: Path, share: int) -> dict[str, float]:
    """Accuracy under each retention, with one token of `share` kept."""
    experiment, task, length = TASKS[name]
    budget = length // share
    place = folder / name / f"seed-{seed}"
    common = [experiment, f"seed={seed}", "model.layer.attention.projection.taps=4"]
    base = train(place / "full", *common, "steps=500")

    def distilled(label: str, weight: float) -> Path:
        gate = {"kind": "gate", "capacity": length // CAPACITY_SHARE, "hidden": 64, "bias": 6.0, "weight": weight}
        return train(
            place / label, *common, "steps=300", f"start_from={base}", "objective={kind: distillation}",
            "optimizer={kind: adamw, peak_lr: 0.01}", f"model.{slots(length)}",
            f"model.layer.attention.retention={json.dumps(gate)}",
        )  # fmt: skip

    measure = folder / f"{name}.yaml"
    measure.write_text(json.dumps({"kind": "recall", "tasks": [task]}))

    def accuracy(run: Path, *overrides: str) -> float:
        return evaluate(run, [str(measure)], 32, overrides=overrides)["tasks"][str(measure)]["accuracy"]

    plain = "layer.attention.retention.fades=false"
    results = {
        "all tokens": accuracy(base),
        "gate": accuracy(distilled("gate", 1.0), slots(budget), plain),
        "gate, no capacity loss": accuracy(distilled("gate-without-capacity", 0.0), slots(budget), plain),
    }
    for kind in HEURISTICS:
        recent = budget // 2 if kind == "h2o" else RECENT
        results[kind] = accuracy(base, slots(budget, recent), f"layer.attention.retention={{kind: {kind}}}")
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tasks", nargs="+", choices=TASKS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--share", type=int, default=CAPACITY_SHARE, help="one token of so many is kept")
    parser.add_argument("--out", type=Path, default=Path("runs/retentions"))
    options = parser.parse_args()
    for name in options.tasks:
        found = [run(name, seed, options.out, options.share) for seed in range(options.seeds)]
        title = f"{name}, {TASKS[name][2] // options.share} slots"
        table = Table("retention", "accuracy", "half of the 95 % interval", "each", title=title)
        for label in found[0]:
            values = [one[label] for one in found]
            mean = estimate(values)
            assert mean is not None  # of one value or more
            half = "" if mean.half is None else f"{mean.half:.3f}"
            table.add_row(label, f"{mean.mean:.3f}", half, " ".join(f"{value:.3f}" for value in values))
        Console().print(table)


if __name__ == "__main__":
    main()
