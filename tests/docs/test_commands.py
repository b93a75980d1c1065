"""Every command of the pages' `sh` blocks runs, in order, in a folder that looks like a fresh clone."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    "README.md",
    *(
        f"docs/{name}.md"
        for name in (
            "training",
            "uptraining",
            "decoding",
            "adding-an-architecture",
            "evaluation",
            "ablations",
            "architectures/gate",
        )
    ),
]
BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.DOTALL | re.MULTILINE)

# What makes a long command short: appended, by the words that it begins with.
SMALLER = {
    ("mnemax", "train"): [
        *("steps=3", "model.width=16", "data.batch_size=4", "data.sequence_length=32", "evaluation.batches=1"),
        *("evaluation.samples=1", "evaluation.sample_tokens=4", "log.tensorboard=false"),
    ],
    ("mnemax", "train", "mqar_tiny"): ["steps=3", "data.batch_size=4", "evaluation.batches=1", "log.tensorboard=false"],
    ("mnemax", "sweep"): ["seeds=1", "steps=3", "data.batch_size=4", "evaluation.batches=1", "log.tensorboard=false"],
    ("mnemax", "sample"): ["--tokens", "4"],
    ("pytest",): ["-p", "no:cacheprovider", "tests/layers/test_norm.py"],
    ("python", "examples/train_and_sample.py"): [],
}


def commands(page: str) -> list[str]:
    lines = "\n".join(BLOCK.findall((ROOT / page).read_text())).splitlines()
    return [line for line in lines if shlex.split(line, comments=True)]


def runnable(command: str) -> tuple[list[str], dict[str, str]]:
    """Arguments for this interpreter, and what the command sets in its environment."""
    words = shlex.split(command, comments=True)
    start = words.index("uv")
    environment = dict(word.split("=", 1) for word in words[:start])
    assert words[start : start + 2] == ["uv", "run"], command
    program = words[start + 2 :]
    fitting = [beginning for beginning in SMALLER if tuple(program[: len(beginning)]) == beginning]
    program += SMALLER[max(fitting, key=len)] if fitting else []
    return [sys.executable, *(program[1:] if program[0] == "python" else ["-m", *program])], environment


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """The repository's files, with nothing yet in runs/."""
    folder = tmp_path / "clone"
    folder.mkdir()
    for name in ("README.md", "docs", "examples", "mnemax", "pyproject.toml", "scripts", "tests"):
        (folder / name).symlink_to(ROOT / name)
    return folder


def run(command: str, clone: Path) -> subprocess.CompletedProcess[str]:
    arguments, environment = runnable(command)
    # One device unless the command says otherwise; compiled programs are shared by the page's commands.
    base = {"XLA_FLAGS": "--xla_backend_optimization_level=1", "XDG_CACHE_HOME": str(clone.parent / "cache")}
    return subprocess.run(
        arguments,
        cwd=clone,
        env=os.environ | base | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_commands_run(page, clone):
    if page == "docs/decoding.md":  # it begins where a run is there
        check(run("uv run mnemax train", clone))
    for command in commands(page):
        check(run(command, clone))
    if page == "docs/decoding.md":
        (code,) = re.findall(r"^```python\n(.*?)^```$", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)
        check(run(f"uv run python -c {shlex.quote(code.replace('max_new=50', 'max_new=4'))}", clone))


def check(result: subprocess.CompletedProcess[str]) -> None:
    assert result.returncode == 0, f"{shlex.join(result.args)}\n{result.stdout}\n{result.stderr}"


@pytest.mark.parametrize("page", PAGES)
def test_every_command_can_be_run(page):
    assert commands(page)
    for command in commands(page):
        runnable(command)
