"""The command line as a user meets it: in this process where possible, since starting one takes seconds."""

import contextlib
import io
import logging
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import jax
import pytest
import yaml

from mnemax.launch import cli

STEPS = 60
TINY = {
    "steps": STEPS,
    "model": {
        "width": 32,
        "vocab_size": 257,
        "max_length": 64,
        "dtype": "float32",
        "layer": {
            "attention": {"projection": {"kind": "gqa", "heads": 2, "kv_heads": 1, "head_width": 16}},
            "feedforward": {"kind": "glu", "width": 64},
        },
        "stages": [{"repeat": 2, "layers": [{}]}],
    },
    "data": {"sources": [{"kind": "text", "path": "text.txt"}], "sequence_length": 32, "batch_size": 8},
    "optimizer": {"peak_lr": 0.01},
    "evaluation": {"batches": 1, "samples": 2, "sample_tokens": 20},
}
LINES = [f"This is line {i} of a text that is made of many lines.\n" for i in range(300)]


@dataclass(frozen=True)
class Result:
    """How a command ended and what it said."""

    code: int
    out: str
    err: str


type Mnemax = Callable[..., Result]


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Compiled programs are shared by the commands of these tests, and not with the user's own."""
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: getattr(jax.config, name) for name in names}
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        yield folder
    for name, value in before.items():
        jax.config.update(name, value)


def run(*words: str | Path) -> Result:
    out, err, code, handlers = io.StringIO(), io.StringIO(), 0, list(logging.root.handlers)
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        patch.setattr(sys, "argv", ["mnemax", *map(str, words)])
        try:
            cli.main()
        except SystemExit as end:
            assert end.code is None or isinstance(end.code, int)
            code = end.code or 0
        finally:
            logging.root.handlers[:] = handlers
    return Result(code, out.getvalue(), err.getvalue())


@pytest.fixture
def mnemax(folder: Path) -> Mnemax:
    """Runs a command in `folder`."""
    return run


def fill(folder: Path) -> None:
    (folder / "tiny.yaml").write_text(yaml.safe_dump(TINY))
    (folder / "text.txt").write_text("".join(LINES))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory: tiny.yaml, text.txt, and no runs yet."""
    fill(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """A run's folder, and what `mnemax train tiny.yaml` said. Tests that change it copy it first."""
    work = tmp_path_factory.mktemp("work")
    fill(work)
    with contextlib.chdir(work):
        result = run("train", "tiny.yaml")
    assert result.code == 0, result.err
    return work / "runs" / "tiny", result
