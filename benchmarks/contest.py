"""Contenders in processes of their own, asked in turn: the ratios come from one sitting, on a machine whose speed wanders.

A contender is a command that answers JSON requests (see workers/pipe.py). No two ever work at the same time: a worker that waits
for its turn sleeps, and `idle_cpu_seconds` in each answer proves it.
"""

import json
import os
import platform
import statistics
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

WORKERS = Path(__file__).parent / "workers"


@dataclass(frozen=True)
class Contender:
    name: str
    command: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    start_command: list[str] | None = None  # its own command line, where the worker is not how a user starts it
    started: str = ""  # what that command prints once the first step is done


class Worker:
    """A contender's process. Raises RuntimeError with the end of its log when it dies."""

    def __init__(self, contender: Contender, logs: Path):
        self.log = logs / f"{contender.name}.log"
        self.process = subprocess.Popen(
            contender.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log.open("w"),
            text=True,
            env=os.environ | contender.environment,
        )

    def ask(self, **request) -> dict:
        before, start = busy_seconds(), time.perf_counter()
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.process.args} stopped; the end of {self.log}:\n{self.log.read_text()[-2000:]}")
        answer = json.loads(line)
        answer["others_cores"] = (busy_seconds() - before - answer["cpu_seconds"]) / (time.perf_counter() - start)
        return answer

    def close(self) -> None:
        """Let the process end by itself, as its conversation does."""
        self.process.stdin.close()
        try:
            self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()


def busy_seconds() -> float:
    """CPU seconds that the whole machine has worked since boot (user, nice, system)."""
    user, nice, system = Path("/proc/stat").read_text().split()[1:4]
    return (int(user) + int(nice) + int(system)) / os.sysconf("SC_CLK_TCK")


def play(contenders: list[Contender], rounds: int, request: dict, logs: Path, warmup: dict) -> dict[str, list[dict]]:
    """Warm every contender up, then ask each once a round, the order turning by one place; all answers by name."""
    logs.mkdir(parents=True, exist_ok=True)
    workers = {}
    try:
        for contender in track(contenders, "starting", console=Console(stderr=True), transient=True):
            workers[contender.name] = Worker(contender, logs)
            workers[contender.name].ask(**warmup)
        answers = {name: [] for name in workers}
        for turn in track(range(rounds), "rounds", console=Console(stderr=True), transient=True):
            names = [*workers][turn % len(workers) :] + [*workers][: turn % len(workers)]
            for name in names:
                answers[name].append(undisturbed(workers[name], request))
        return answers
    finally:
        for worker in workers.values():
            worker.close()


def undisturbed(worker: Worker, request: dict, tries: int = 3) -> dict:
    """Ask when the machine is quiet, and again if other processes took more than a tenth of a core; the least disturbed answer."""
    answers = []
    for _ in range(tries):
        wait_for_quiet()
        answers.append(worker.ask(**request))
        if answers[-1]["others_cores"] <= 0.1:
            break
    return min(answers, key=lambda answer: answer["others_cores"])


def wait_for_quiet(limit: float = 60) -> None:
    """Sleep until the machine has idled for half a second, ``limit`` seconds at most."""
    deadline = time.perf_counter() + limit
    while time.perf_counter() < deadline:
        before = busy_seconds()
        time.sleep(0.5)
        if busy_seconds() - before <= 0.05:
            return


def first_step_seconds(contender: Contender, request: dict, logs: Path) -> float:
    """Seconds from starting a fresh process to the answer of its first request, or to the line that its own command prints."""
    logs.mkdir(parents=True, exist_ok=True)
    wait_for_quiet()
    start = time.perf_counter()
    if not contender.start_command:
        worker = Worker(contender, logs)
        worker.ask(**request)
        seconds = time.perf_counter() - start
        worker.close()
        return seconds
    process = subprocess.Popen(
        contender.start_command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | contender.environment,
    )
    output = []
    for line in process.stdout:
        output.append(line)
        if contender.started in line:
            seconds = time.perf_counter() - start
            process.kill()
            process.wait()
            return seconds
    raise RuntimeError(f"{contender.start_command} ended without printing {contender.started!r}:\n{''.join(output)[-2000:]}")


def summary(answers: dict[str, list[dict]], reference: str) -> dict[str, dict]:
    """Tokens/s, their ratio to ``reference`` round by round, peak bytes, and the most cores that other processes took."""
    rates = {name: [answer["tokens"] / answer["seconds"] for answer in rows] for name, rows in answers.items()}
    peak = {name: rows[-1]["peak_bytes"] for name, rows in answers.items()}
    return {
        name: {
            "tokens_per_second": spread(rates[name]),
            "speed_ratio": spread([own / other for own, other in zip(rates[name], rates[reference], strict=True)]),
            "cpu_seconds_per_1000_tokens": spread([1000 * row["cpu_seconds"] / row["tokens"] for row in rows]),
            "peak_bytes": peak[name],
            "peak_ratio": peak[name] / peak[reference],
            "others_cores": max(row["others_cores"] for row in rows),
            "idle_cpu_seconds": sum(row["idle_cpu_seconds"] for row in rows),
        }
        for name, rows in answers.items()
    }


def spread(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def machine() -> dict:
    model = next((line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")), "?: ?")
    return {"cpu": model.split(": ")[1], "cores": os.cpu_count(), "kernel": platform.release()}


def show(title: str, results: dict[str, dict], reference: str) -> None:
    """Print ``results`` as a table; the ratios are to ``reference``, the median and spread of those of each round."""
    columns = ["", "tokens/s", "best", "ratio", "min..max", "CPU s / 1k", "peak MiB", "ratio", "first step s", "others"]
    table = Table(*columns, title=title, caption=f"ratios to {reference}; others: cores that other processes took, at most")
    for name, row in results.items():
        rate, ratio = row["tokens_per_second"], row["speed_ratio"]
        table.add_row(
            name,
            f"{rate['median']:.0f}",
            f"{rate['max']:.0f}",
            f"{ratio['median']:.2f}",
            f"{ratio['min']:.2f}..{ratio['max']:.2f}",
            f"{row['cpu_seconds_per_1000_tokens']['min']:.2f}",
            f"{row['peak_bytes'] / 2**20:.0f}",
            f"{row['peak_ratio']:.2f}",
            f"{row['first_step_seconds']:.1f}" if "first_step_seconds" in row else "",
            f"{row['others_cores']:.2f}",
        )
    Console(width=110).print(table)
