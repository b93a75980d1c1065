"""Runs the cells of a sweep, each in a process of its own, one after another or several at a time."""

import fcntl
import json
import os
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from mnemax.configs.load import load_run, save
from mnemax.configs.schema import RunConfig
from mnemax.configs.sweep import Cell, SweepConfig, cells, load_sweep, quantity, seeds
from mnemax.errors import UserError
from mnemax.evaluation.accounting import human
from mnemax.files import write_whole, writing
from mnemax.launch.runs import SWEEP_LOG, SWEEP_STATE
from mnemax.training.metrics import read

ROOT = Path("runs") / "sweeps"


@dataclass(frozen=True)
class Member:
    """One seed of one cell: a run in a folder of the sweep."""

    cell: Cell
    seed: int
    folder: Path
    steps: int

    @property
    def name(self) -> str:
        return f"{self.cell.name}/seed-{self.seed}"

    @property
    def state(self) -> dict[str, Any]:
        """state.json: `state` is running, finished or failed; nothing before it was begun."""
        try:
            return json.loads((self.folder / SWEEP_STATE).read_text())
        except (OSError, ValueError):
            return {}

    def write_state(self, state: str, error: str | None = None, seconds: float = 0.0, tasks: Sequence[str] = ()) -> None:
        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            write_whole(
                self.folder / SWEEP_STATE,
                json.dumps({"state": state, "error": error, "seconds": seconds, "tasks": [*tasks]}) + "\n",
            )

    @property
    def progress(self) -> str:
        """The last step that its metrics tell of."""
        records = read(self.folder / "metrics.jsonl")
        return f"step {records[-1]['step']} of {self.steps}" if records else "starting"


def keep_accelerator_free() -> None:
    """This process only plans and waits; the devices are its children's, so it must not take them."""
    import jax

    jax.config.update("jax_platforms", "cpu")


def prepare(name: str, overrides: list[str], out: Path | None, console: Console) -> tuple[SweepConfig, Path, list[Member]]:
    """Reads a sweep, checks every cell, says what they are, and writes sweep.yaml and cells.json; nothing runs yet.

    Raises:
        UserError: a cell is wrong, or the folder holds another sweep's results.
    """
    sweep = load_sweep(name, overrides)
    folder = ROOT / sweep.name if out is None else out
    found = cells(sweep)
    runs = {cell.name: cell.run(sweep.base) for cell in found}
    members = [
        Member(cell, seed, folder / "cells" / cell.name / f"seed-{seed}", runs[cell.name].steps)
        for cell in found
        for seed in seeds(sweep)
    ]
    listed = [
        {
            "name": member.cell.name,
            "label": member.cell.label,
            "seed": member.seed,
            "folder": str(member.folder.relative_to(folder)),
            "base": sweep.base,
            "overrides": member.cell.overrides,
            "chosen": member.cell.chosen,
        }
        for member in members
    ]
    _check_same(folder, listed)
    for member in members:
        _check_definition(member, runs[member.cell.name])
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        save(sweep, folder / "sweep.yaml")
        write_whole(folder / "cells.json", json.dumps(listed, indent=1) + "\n")
    console.print(_plan(sweep, found, runs))
    return sweep, folder, members


def chosen(members: list[Member], only: str | None) -> list[Member]:
    """All, or the one that is named.

    Raises:
        UserError: there is none of this name.
    """
    found = [member for member in members if only in (None, member.name)]
    if not found:
        raise UserError(f"--only {only} names no member; they are {', '.join(member.name for member in members)}.")
    return found


def _check_same(folder: Path, listed: list[dict[str, Any]]) -> None:
    """Refuses to mix results: what is there of a name must have been made by what that name means now."""
    if not (folder / "cells.json").is_file():
        return
    now = {entry["folder"]: entry for entry in listed}
    try:
        there = json.loads((folder / "cells.json").read_text())
    except ValueError as error:
        raise UserError(f"{folder}/cells.json is damaged ({error}); remove it, and it is written anew.") from error
    for before in there:
        same = now.get(before["folder"], before)
        for part in ("base", "overrides", "chosen"):
            if same[part] != before[part] and (folder / before["folder"] / "config.yaml").is_file():
                raise UserError(
                    f"{folder} holds a cell '{before['label']}' that was run with {part} {json.dumps(before[part])}, "
                    f"not {json.dumps(same[part])}; name another folder with --out."
                )


def _check_definition(member: Member, now: RunConfig) -> None:
    """Refuses to go on with a cell whose base has been edited since it was begun."""
    from mnemax.training.trainer import differences

    if not (member.folder / "config.yaml").is_file():
        return
    before, after = (run.model_dump(exclude={"name", "seed"}) for run in (load_run(str(member.folder)), now))
    if changed := next(differences(before, after, ""), None):
        raise UserError(f"{member.folder} was begun by another definition: {changed}; name another folder with --out.")


def _plan(sweep: SweepConfig, found: list[Cell], runs: dict[str, RunConfig]) -> Table:
    total = len(seeds(sweep)) * sum(quantity(run, "train_flops") for run in runs.values())
    count = len(seeds(sweep))
    table = Table(
        title=f"{sweep.name}: {len(found)} cells, {count} seed{'s' if count > 1 else ''} each, {human(total, 'FLOPs')} in all",
        title_justify="left",
    )
    for column in ("cell", "parameters", "state", "training", "chosen"):
        table.add_column(column, justify="left" if column in ("cell", "chosen") else "right")
    units = {"parameters": "", "state_bytes": "B", "train_flops": "FLOPs"}
    for cell in found:
        numbers = (human(quantity(runs[cell.name], which), unit) for which, unit in units.items())
        table.add_row(cell.label, *numbers, " ".join(f"{field.rpartition('.')[2]}={value}" for field, value in cell.chosen.items()))
    return table


def run_all(sweep: SweepConfig, members: list[Member], jobs: int, console: Console) -> list[Member]:
    """Runs what is not finished, `jobs` at a time; returns those that failed. A Ctrl-C ends with every cell resumable."""
    waiting = [member for member in members if not is_finished(member, sweep)]
    if len(waiting) < len(members):
        console.print(f"{len(members) - len(waiting)} of {len(members)} are finished already.")
    runner = Runner(sweep, jobs, console)
    with ThreadPoolExecutor(jobs) as pool, Live(console=console, refresh_per_second=2, transient=True) as live:
        pending = [pool.submit(runner.run, member) for member in waiting]
        try:
            while not all(one.done() for one in pending):
                if console.is_terminal:
                    done = sum(one.done() for one in pending)
                    live.update(_status(runner.running(), done, len(pending)))
                time.sleep(0.5)
        except KeyboardInterrupt:
            runner.stopping = True
            pool.shutdown(cancel_futures=True)  # the children were sent the signal too: they save and end
            raise
    for one in pending:
        one.result()
    return [member for member in members if member.state.get("state") == "failed"]


def is_finished(member: Member, sweep: SweepConfig) -> bool:
    """Whether it is trained and all that the sweep asks now is measured."""
    state = member.state
    return state.get("state") == "finished" and set(sweep.tasks) <= set(state.get("tasks", sweep.tasks))


def _status(running: list[Member], done: int, total: int) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_row(f"{done} of {total} done", "")
    for member in running:
        table.add_row(member.name, member.progress)
    return table


class Runner:
    """Starts members; on Linux, each of several at a time has its own share of the cores."""

    def __init__(self, sweep: SweepConfig, jobs: int, console: Console):
        self.sweep, self.console = sweep, console
        self.lock = threading.Lock()
        cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        self.shares = [set(cores[i::jobs] or cores) for i in range(jobs)]
        self.current: dict[str, Member] = {}
        self.stopping = False

    def running(self) -> list[Member]:
        with self.lock:
            return list(self.current.values())

    def run(self, member: Member) -> None:
        """Trains (or resumes) and measures one member, and writes how it ended."""
        if self.stopping:
            return
        with self.lock:
            share = self.shares.pop()
            self.current[member.name] = member
        begin = time.perf_counter() - member.state.get("seconds", 0.0)
        member.write_state("running", seconds=member.state.get("seconds", 0.0))
        try:
            error = self._processes(member, share)
        finally:
            with self.lock:
                self.shares.append(share)
                del self.current[member.name]
        seconds = round(time.perf_counter() - begin, 1)
        if self.stopping:
            member.write_state("running", seconds=seconds)
            return
        member.write_state("finished" if error is None else "failed", error, seconds, self.sweep.tasks)
        said = "finished" if error is None else f"[red]failed[/]: {error}"
        self.console.print(f"{member.name}: {said} ({seconds:.0f} s)", highlight=False)

    def _processes(self, member: Member, share: set[int]) -> str | None:
        """Why it failed, or None."""
        for command in commands(self.sweep, member):
            with (member.folder / SWEEP_LOG).open("a") as log:
                # The lock is the child's as well, whose output this is: what a killed sweep left running is waited for.
                fcntl.flock(log, fcntl.LOCK_EX)
                process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
                if share and hasattr(os, "sched_setaffinity"):
                    os.sched_setaffinity(process.pid, share)
                if process.wait():
                    return _last_line(member.folder / SWEEP_LOG) or f"exit code {process.returncode}"
        return None


def commands(sweep: SweepConfig, member: Member) -> list[list[str]]:
    """The command lines that train and measure a member."""
    mnemax = [sys.executable, "-m", "mnemax"]
    given = [*member.cell.arguments, f"seed={member.seed}", f"name={member.cell.name}"]
    resume = ["--resume"] if (member.folder / "config.yaml").is_file() else []
    train = [*mnemax, "train", sweep.base, *given, "--out", str(member.folder), *resume]
    tasks = ["--tasks", ",".join(sweep.tasks)] if sweep.tasks else []
    return [train, [*mnemax, "eval", str(member.folder), *tasks]]


def emit(sweep: SweepConfig, name: str, overrides: list[str], folder: Path, members: list[Member]) -> str:
    """One command a line for every member that is not finished, to be run anywhere that sees the folder."""
    waiting = [member for member in members if not is_finished(member, sweep)]
    start = ["mnemax", "sweep", name, *overrides, "--out", str(folder), "--only"]
    return "\n".join(shlex.join([*start, member.name]) for member in waiting)


def _last_line(path: Path) -> str:
    lines = [line.strip() for line in path.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""
