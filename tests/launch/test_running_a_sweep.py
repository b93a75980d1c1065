"""A sweep as a user meets it: cells in processes of their own, finished ones skipped, failed ones shown, the rest resumed."""

import fcntl
import json
import shlex
import subprocess

import pytest
import yaml
from rich.console import Console

from mnemax.configs.sweep import load_sweep
from mnemax.launch import sweep as launch
from tests.launch.conftest import TINY

TASK = {"kind": "mqar", "vocab_size": 64, "length": 16, "pairs": 2}
MISSING = {"kind": "text", "path": "nowhere.txt"}
SWEEP = {
    "base": "base.yaml",
    "title": "Two cells",
    "set": {"steps": 4, "evaluation.batches": 1, "log.tensorboard": False},
    "cells": [
        {"label": "window 4", "set": {"model.layer.attention.memory": {"kind": "window", "size": 4}}},
        {
            "label": "no such text",
            "set": {"data.sources": [{"kind": "text", "path": "nowhere.txt"}], "data.tokenizer": {"kind": "bytes"}},
        },
    ],
}


@pytest.fixture
def sweep(folder, monkeypatch):
    """try.yaml: one cell that trains and one whose data is missing, which only the run finds out."""
    data = {"tokenizer": {"kind": "symbols", "vocab_size": 64}, "sources": [TASK], "sequence_length": 32, "batch_size": 8}
    base = {**TINY, "data": data, "evaluation": {"samples": 0}, "checkpoint": {"every": 2}}
    (folder / "base.yaml").write_text(yaml.safe_dump(base))
    (folder / "try.yaml").write_text(yaml.safe_dump(SWEEP))
    monkeypatch.setenv("XLA_FLAGS", "--xla_backend_optimization_level=0")
    return folder / "runs" / "sweeps" / "try"


def state(folder, cell: str, seed: int = 0) -> dict:
    return json.loads((folder / "cells" / cell / f"seed-{seed}" / "state.json").read_text())


def test_a_sweep_from_end_to_end(mnemax, sweep):
    result = mnemax("sweep", "try.yaml", "--jobs", "2")
    assert result.code == 2
    assert "1 of 2 failed (no-such-text/seed-0)" in result.err
    assert "2 cells, 1 seed each" in result.out
    assert state(sweep, "window-4")["state"] == "finished"
    failed = state(sweep, "no-such-text")
    assert (failed["state"], "nowhere.txt does not exist" in failed["error"]) == ("failed", True)
    measured = json.loads((sweep / "cells" / "window-4" / "seed-0" / "evaluation.json").read_text())
    assert measured["step"] == 4
    assert measured["tasks"]["recall"]["answers"] == 256 * 2

    # What is finished is not run again, and what failed is.
    before = (sweep / "cells" / "window-4" / "seed-0" / "log.txt").read_bytes()
    (sweep / "cells" / "no-such-text" / "seed-0" / "log.txt").unlink()
    again = mnemax("sweep", "try.yaml")
    assert "1 of 2 are finished already" in again.out
    assert (sweep / "cells" / "window-4" / "seed-0" / "log.txt").read_bytes() == before
    assert (sweep / "cells" / "no-such-text" / "seed-0" / "log.txt").exists()

    # What the sweep asks besides is measured without training anew; an edited base is another definition.
    more = mnemax("sweep", "try.yaml", "tasks=[recall]", "--only", "window-4/seed-0")
    assert more.code == 0, more.err
    assert state(sweep, "window-4")["tasks"] == ["recall"]
    base = sweep.parents[2] / "base.yaml"
    base.write_text(base.read_text().replace("batch_size: 8", "batch_size: 16"))
    edited = mnemax("sweep", "try.yaml")
    assert edited.code == 2
    assert "was begun by another definition: data.batch_size is 8 there and 16 here" in edited.err
    base.write_text(base.read_text().replace("batch_size: 16", "batch_size: 8"))

    # The report draws what is there and lists the rest; another definition may not be mixed in.
    report = mnemax("report", sweep)
    assert report.code == 0, report.err
    page = (sweep / "report" / "index.html").read_text()
    assert "window 4" in page and "nowhere.txt does not exist" in page
    mixed = mnemax("sweep", "try.yaml", "steps=5")
    assert mixed.code == 2
    assert "holds a cell 'window 4' that was run with overrides" in mixed.err


def test_commands_for_elsewhere(mnemax, sweep):
    result = mnemax("sweep", "try.yaml", "seeds=2", "--emit")
    assert result.code == 0, result.err
    members = [shlex.split(line) for line in result.out.splitlines()]
    assert [words[:4] for words in members] == [["mnemax", "sweep", "try.yaml", "seeds=2"]] * 4
    assert [words[-1] for words in members] == [f"{cell}/seed-{n}" for cell in ("window-4", "no-such-text") for n in (0, 1)]
    assert not (sweep / "cells").exists()


def test_one_member_alone(mnemax, sweep):
    result = mnemax("sweep", "try.yaml", "seeds=[5]", "--only", "window-4/seed-6")
    assert result.code == 2
    assert "--only window-4/seed-6 names no member; they are window-4/seed-5, no-such-text/seed-5" in result.err


def test_nothing_runs_before_every_cell_is_right(mnemax, sweep, folder):
    wrong = {**SWEEP, "cells": [*SWEEP["cells"], {"label": "c", "set": {"model.layer.attention.memory.kind": "windwo"}}]}
    (folder / "try.yaml").write_text(yaml.safe_dump(wrong))
    result = mnemax("sweep", "try.yaml")
    assert result.code == 2
    assert "cell 'c'" in result.err and "did you mean 'window'" in result.err
    assert not sweep.exists()


def test_what_a_killed_sweep_left_running_is_waited_for(sweep, monkeypatch):
    _, _, members = launch.prepare("try.yaml", [], None, Console(quiet=True))
    members[0].folder.mkdir(parents=True)
    with (members[0].folder / "log.txt").open("a") as log:
        fcntl.flock(log, fcntl.LOCK_EX)
        orphan = subprocess.Popen(["sleep", "1"], stdout=log)
    monkeypatch.setattr(launch, "commands", lambda *_: [["true"]])
    launch.Runner(load_sweep("try.yaml", []), 1, Console(quiet=True)).run(members[0])
    assert orphan.poll() is not None
    assert members[0].state["state"] == "finished"


def test_a_report_of_what_is_no_sweep(mnemax, folder):
    result = mnemax("report", ".")
    assert result.code == 2
    assert "cells.json" in result.err
