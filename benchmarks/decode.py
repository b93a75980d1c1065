"""Greedy decoding of one imported model (scripts/fetch_smollm2.py) on this machine, by each contender in turn (docs/benchmarks.md).

uv run python benchmarks/decode.py HF_FOLDER --torch-python TORCH_ENV/bin/python
"""

import json
import random
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import contest
import typer


class Name(StrEnum):
    mnemax = "mnemax"
    torch_dynamic = "torch-dynamic"
    torch_static = "torch-static"


class Dtype(StrEnum):
    float32 = "float32"
    bfloat16 = "bfloat16"


CONTENDERS, DTYPES, BATCHES = list(Name), list(Dtype), [1, 8]


def contender(name: Name, dtype: Dtype, model: Path, torch_python: str) -> contest.Contender:
    if name is Name.mnemax:
        return contest.Contender(
            name, [sys.executable, str(contest.WORKERS / "decode_mnemax.py"), "--model", str(model), "--dtype", dtype]
        )
    command = [torch_python, str(contest.WORKERS / "decode_torch.py"), "--cache", name.removeprefix("torch-")]
    return contest.Contender(name, [*command, "--model", str(model), "--dtype", dtype])


def main(
    model: Annotated[Path, typer.Argument(help="Hugging Face folder, as scripts/fetch_smollm2.py writes it", exists=True)],
    torch_python: Annotated[str, typer.Option(envvar="TORCH_PYTHON", help="python with torch and transformers")] = "python",
    contenders: Annotated[list[Name], typer.Option("--contender")] = CONTENDERS,
    dtypes: Annotated[list[Dtype], typer.Option("--dtype", help="dtype of weights and compute")] = DTYPES,
    batches: Annotated[list[int], typer.Option("--batch")] = BATCHES,
    prompt: Annotated[int, typer.Option(help="tokens of each prompt")] = 64,
    new: Annotated[int, typer.Option(help="tokens generated after it")] = 128,
    rounds: int = 5,
    out: Annotated[Path, typer.Option(help="every answer and the summary, as JSON")] = Path("runs/benchmarks/decode.json"),
) -> None:
    """Decode the same prompts by every contender in turn and print tokens/s and memory, as ratios."""
    report = {"machine": contest.machine(), "prompt": prompt, "new": new, "rounds": rounds, "results": {}}
    vocabulary = json.loads((model / "config.json").read_text())["vocab_size"]
    for dtype in dtypes:
        for batch in batches:
            ids = random.Random(0)
            request = {"prompts": [[ids.randrange(vocabulary) for _ in range(prompt)] for _ in range(batch)], "new": new}
            field = [contender(name, dtype, model, torch_python) for name in contenders]
            answers = contest.play(field, rounds, request, out.parent / f"{out.stem}-logs", warmup=request | {"new": 8})
            results = contest.summary(answers, contenders[0])
            for name, rows in answers.items():
                results[name]["agreement"] = agreement(rows[-1]["generated"], answers[contenders[0]][-1]["generated"])
            report["results"][f"{dtype} batch {batch}"] = {"summary": results, "answers": answers}
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_text(json.dumps(report) + "\n")
            contest.show(f"decoding, {dtype}, batch {batch}", results, contenders[0])


def agreement(own: list[list[int]], other: list[list[int]]) -> float:
    """The share of positions where two generations chose the same token."""
    pairs = [pair for row in zip(own, other, strict=True) for pair in zip(*row, strict=True)]
    return sum(left == right for left, right in pairs) / len(pairs)


if __name__ == "__main__":
    typer.run(main)
