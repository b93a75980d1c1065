"""A sweep's folder as `mnemax sweep` leaves it, with made-up numbers that look like recall under windows of several sizes."""

import itertools
import json
import math
import random
from pathlib import Path
from typing import Any

import yaml

CONTEXT = 256
ENTRY = 256


TASKS = ("mqar", "needles", "language")


def write_sweep(
    folder: Path,
    sizes: tuple[int | None, ...] = (16, 32, 64, 128, None),
    seeds: int = 3,
    tasks: tuple[str, ...] = TASKS,
    **about: Any,
) -> Path:
    """Cells of windows (None: full attention); every run has finished. `about` goes over sweep.yaml."""
    folder.mkdir(parents=True)
    draw = random.Random(0)
    cells = [_write_run(folder, size, seed, tasks, draw) for size in sizes for seed in range(seeds)]
    (folder / "cells.json").write_text(json.dumps(cells))
    described = {
        "name": folder.name,
        "title": "How far must a window reach?",
        "description": "Windows of several sizes & full attention.",
    }
    (folder / "sweep.yaml").write_text(yaml.safe_dump(described | {"x": "model.layer.attention.memory.size"} | about))
    return folder


def _write_run(folder: Path, size: int | None, seed: int, tasks: tuple[str, ...], draw: random.Random) -> dict[str, Any]:
    memory = {"kind": "full"} if size is None else {"kind": "window", "size": size}
    name = "memory.kind=full" if size is None else f"memory.size={size}"
    run = folder / "cells" / name / f"seed-{seed}"
    run.mkdir(parents=True)
    config = {
        "name": name,
        "seed": seed,
        "model": {"width": 64, "layer": None, "stages": [{"layers": [{"attention": {"memory": memory}}]}]},
    }
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    (run / "state.json").write_text(json.dumps({"state": "finished", "error": None, "seconds": 60.0 + seed}))
    reach = CONTEXT if size is None else size
    final = 0.99 * min(1.0, (reach / CONTEXT) ** 0.6) + draw.uniform(-0.01, 0.01)
    (run / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in _metrics(final, draw)))
    evaluation = _evaluation(reach, final, draw)
    evaluation["tasks"] = {task: evaluation["tasks"][task] for task in tasks}
    (run / "evaluation.json").write_text(json.dumps(evaluation))
    overrides = {f"model.layer.attention.memory.{field}": value for field, value in memory.items()}
    return {
        "name": name,
        "label": "full attention" if size is None else f"window {size}",
        "seed": seed,
        "folder": str(run.relative_to(folder)),
        "overrides": overrides,
        "chosen": {"model.width": 64 if size is None else 64 + 8 * (size % 3)},
    }


def _metrics(final: float, draw: random.Random) -> list[dict[str, Any]]:
    records = []
    for step in range(10, 2001, 10):
        accuracy = final / (1 + math.exp((900 - step) / 150)) + draw.uniform(0, 0.02)
        records.append({"split": "train", "step": step, "loss": 6 * (1 - accuracy), "accuracy": accuracy})
        if step % 400 == 0:
            records.append({"split": "validation", "step": step, "loss": 6 * (1 - accuracy), "accuracy": accuracy - 0.01})
    return records


def _evaluation(reach: int, final: float, draw: random.Random) -> dict[str, Any]:
    def recall(distance: float) -> float:
        return max(0.004, min(1.0, 0.99 / (1 + math.exp(min(50.0, (distance - reach) / (reach / 8)))) + draw.uniform(-0.01, 0.01)))

    edges = [1, 4, 8, 16, 32, 64, 128, 256]
    bins = [(low if low == 1 else low + 1, high) for low, high in itertools.pairwise(edges)]
    lengths, depths = [64, 128, 256], [0.0, 0.25, 0.5, 0.75, 1.0]
    state = min(reach, CONTEXT) * ENTRY
    bits = 2.4 - 0.1 * math.log2(reach) / 2 + draw.uniform(-0.01, 0.01)
    loss = 1.3 * bits
    return {
        "model": {
            "parameters": 123_456,
            "state_bytes": state,
            "context": CONTEXT,
            "bytes_a_token": ENTRY,
            "flops_a_token": 1.1e6 + 40 * reach,
            "train_flops": 3.3e12,
        },
        "tasks": {
            "mqar": {
                "accuracy": final,
                "loss": 6 * (1 - final),
                "answers": 4000,
                "chance": 1 / 256,
                "by_distance": [{"from": a, "to": b, "accuracy": recall((a + b) / 2), "answers": 500} for a, b in bins],
            },
            "needles": {
                "accuracy": min(1.0, reach / CONTEXT * 0.9 + 0.05),
                "grid": {
                    "lengths": lengths,
                    "depths": depths,
                    "accuracy": [[recall(length * (1 - depth) + 4) for depth in depths] for length in lengths],
                },
            },
            "language": {
                "bits_per_byte": bits,
                "loss": loss,
                "by_position": [
                    {"from": a, "to": b, "loss": loss + 1.5 / math.sqrt(1 + min(b, reach))} for a, b in [(0, 0), *bins]
                ],
                "repeated_bigrams": {"loss": 1.2 + 4 / math.sqrt(reach), "tokens": 900},
                "other": {"loss": 2.9},
            },
        },
    }
