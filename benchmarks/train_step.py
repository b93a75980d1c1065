"""Training steps of one 10.23 M-parameter model on this machine, by each contender in turn (docs/benchmarks.md).

uv run python benchmarks/train_step.py --torch-python TORCH_ENV/bin/python --maxtext-python MAXTEXT_ENV/bin/python
"""

import json
import statistics
import sys
import tempfile
from collections.abc import Callable
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import contest
import typer
from workers import shape


class Name(StrEnum):
    mnemax = "mnemax"
    maxtext = "maxtext"
    maxtext_light_remat = "maxtext-light-remat"
    torch_eager = "torch-eager"
    torch_compiled = "torch-compiled"


class Dtype(StrEnum):
    float32 = "float32"
    bfloat16 = "bfloat16"


CONTENDERS, DTYPES = list(Name), list(Dtype)


def contender(name: Name, dtype: Dtype, torch_python: str, maxtext_python: str, scratch: Path) -> contest.Contender:
    """How ``name`` is started; each gets an empty compile cache in ``scratch``, so that its first step is a cold one."""
    if name in (Name.torch_eager, Name.torch_compiled):
        command = [torch_python, str(contest.WORKERS / "train_torch.py"), "--dtype", dtype]
        command += ["--compile"] if name is Name.torch_compiled else []
        return contest.Contender(name, command, {"TORCHINDUCTOR_CACHE_DIR": tempfile.mkdtemp(dir=scratch)})
    if name is Name.mnemax:
        worker = contest.WORKERS / "train_mnemax.py"
        overrides = [f"model.dtype={dtype}"]
        command_line = ["-u", "-m", "mnemax", "train", str(worker.with_suffix(".yaml")), "steps=1", *overrides]
        return contest.Contender(
            name,
            [sys.executable, str(worker), *overrides],
            {"XDG_CACHE_HOME": tempfile.mkdtemp(dir=scratch)},
            start_command=[sys.executable, *command_line, "--out", tempfile.mkdtemp(dir=scratch)],
            started="step 1:",
        )
    flags = [f"dtype={dtype}", f"jax_cache_dir={tempfile.mkdtemp(dir=scratch)}"]
    flags += ["remat_policy=minimal_with_context"] if name is Name.maxtext_light_remat else []
    flags.append(f"base_output_directory={scratch}")
    module = "maxtext.trainers.pre_train.train"
    return contest.Contender(
        name,
        [maxtext_python, str(contest.WORKERS / "train_maxtext.py"), *flags],
        {"JAX_PLATFORMS": "cpu", "HF_HUB_OFFLINE": "1"},
        start_command=[maxtext_python, "-u", "-m", module, *shape.MAXTEXT_FLAGS, "steps=1", *flags],
        started="completed step: 0",
    )


def main(
    torch_python: Annotated[str, typer.Option(envvar="TORCH_PYTHON", help="python with torch and transformers")] = "python",
    maxtext_python: Annotated[str, typer.Option(envvar="MAXTEXT_PYTHON", help="python with MaxText")] = "python",
    contenders: Annotated[list[Name], typer.Option("--contender")] = CONTENDERS,
    dtypes: Annotated[list[Dtype], typer.Option("--dtype", help="compute dtype; weights are float32")] = DTYPES,
    rounds: int = 5,
    steps: Annotated[int, typer.Option(help="steps a turn")] = 1,
    starts: Annotated[int, typer.Option(help="fresh processes whose first step is timed, each contender")] = 1,
    out: Annotated[Path, typer.Option(help="every answer and the summary, as JSON")] = Path("runs/benchmarks/train_step.json"),
) -> None:
    """Step the same model by every contender in turn and print tokens/s, memory and time to the first step, as ratios."""
    report = {"machine": contest.machine(), "steps": steps, "rounds": rounds, "dtypes": {}}
    for dtype in dtypes:
        with tempfile.TemporaryDirectory() as scratch:
            make = partial(contender, dtype=dtype, torch_python=torch_python, maxtext_python=maxtext_python, scratch=Path(scratch))
            answers, results = measure(make, contenders, rounds, steps, starts, logs=out.parent / f"{out.stem}-logs")
        report["dtypes"][dtype] = {"summary": results, "answers": answers}
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(report, indent=1) + "\n")
        contest.show(f"training step, {dtype} compute", results, contenders[0])


def measure(make: Callable[[Name], contest.Contender], names: list[Name], rounds: int, steps: int, starts: int, logs: Path):
    """All answers by name, and their summary; ``make`` gives a contender with an empty compile cache at each call."""
    answers = contest.play([make(name) for name in names], rounds, {"steps": steps}, logs, warmup={"steps": 2})
    check(answers)
    results = contest.summary(answers, names[0])
    for name in names if starts else []:
        seconds = [contest.first_step_seconds(make(name), {"steps": 1}, logs) for _ in range(starts)]
        results[name]["first_step_seconds"] = statistics.median(seconds)
    return answers, results


def check(answers: dict[str, list[dict]]) -> None:
    """Refuse a comparison of different models, or of one whose loss is not that of an untrained model on random tokens."""
    for name, rows in answers.items():
        if rows[-1]["parameters"] != shape.PARAMETERS:
            raise SystemExit(f"{name} has {rows[-1]['parameters']} parameters, not {shape.PARAMETERS}.")
        if not 8 < rows[0]["loss"] < 10:
            raise SystemExit(f"{name} has a loss of {rows[0]['loss']}: about ln {shape.VOCABULARY} = 9.01 is expected.")


if __name__ == "__main__":
    typer.run(main)
