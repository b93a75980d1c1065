"""The training loop: data, step, evaluation, checkpoints and signals. No mathematics."""

import contextlib
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.console import Console

from mnemax.configs import load
from mnemax.configs.schema import RunConfig
from mnemax.data.config import HFTokenizer
from mnemax.data.pipeline import train_iterator, validation_batches
from mnemax.data.tokenizers import Tokenizer, check_vocabulary, load_tokenizer
from mnemax.errors import UserError
from mnemax.evaluation import accounting
from mnemax.files import writing
from mnemax.launch.mesh import check_batch, make_mesh, put_batch
from mnemax.launch.sampling import prompt_ids
from mnemax.training.checkpoint import Checkpoints, save_environment
from mnemax.training.metrics import Metrics, Record, bits_per_byte
from mnemax.training.progress import TrainProgress
from mnemax.training.start import check_start, start
from mnemax.training.step import TrainState, init_state, make_eval_step, make_train_step

console = Console()


@dataclass
class Outcome:
    """How a run ended: its last validation, and `signal`, which is what stopped it early, None where all steps were done."""

    folder: Path
    step: int
    validation: Record | None
    signal: int | None


def train(run: RunConfig, folder: Path, *, resume: bool = False) -> Outcome:
    """Trains until `run.steps`, or until SIGINT or SIGTERM, which end with a checkpoint.

    Raises:
        UserError: the data, the mesh or the checkpoints do not fit the configuration, or too many updates in a row were skipped.
    """
    return Trainer(run, folder, resume).run_to_end()


class Trainer:
    """One run in one folder."""

    def __init__(self, run: RunConfig, folder: Path, resume: bool):
        self.run, self.folder = run, folder
        if resume:
            check_resumable(run, folder)
        else:
            check_start(run)
        self.tokenizer = load_tokenizer(run.data.tokenizer)
        check_vocabulary(self.tokenizer, run.model.vocab_size)
        if resume:
            check_same_tokenizer(self.tokenizer, folder)
        check_prompt(run, self.tokenizer)
        self.mesh = make_mesh(run.mesh)
        check_batch(run.data.batch_size // run.training.accumulate, self.mesh)
        describe_cost(run, self.mesh)
        self.iterator = train_iterator(run.data, self.tokenizer, run.seed, jax.process_index(), jax.process_count())
        self.validation = Validation(run, self.tokenizer, self.mesh)
        self.token_bytes = self.tokenizer.token_bytes
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            if jax.process_index() == 0:
                load.save(run, folder / "config.yaml")
                load.save(run.model, folder / "model.yaml")
                save_environment(folder / "environment.json")
                self.tokenizer.save(folder / "tokenizer")
        self.resume = resume
        self.validated: Record | None = None

    def run_to_end(self) -> Outcome:
        with jax.set_mesh(self.mesh), stop_signals() as stop:
            state = init_state(self.run)
            checkpoints = Checkpoints(self.folder.resolve(), self.run.checkpoint)
            if self.resume:
                state, wrong = checkpoints.restore(state, self.iterator)
                for sentence in wrong:
                    console.print(f"[yellow]{self.folder}: {sentence}; it is put aside, and the one before it is taken.")
                done = int(state.step)
                console.print(f"Resuming at step {done}." if done < self.run.steps else f"All {self.run.steps} steps are done.")
            if int(state.step) == 0:
                state = replace(state, params=start(self.run, state.params))
            try:
                state = self._loop(state, checkpoints, stop)
                checkpoints.wait()
            finally:
                checkpoints.close()
        done = int(state.step) == self.run.steps
        return Outcome(self.folder, int(state.step), self.validated, None if done else stop.signal)

    def _loop(self, state: TrainState, checkpoints: Checkpoints, stop: "StopSignal") -> TrainState:
        run, step = self.run, int(state.step)
        metrics = Metrics(self.folder, run.log, run.name, run.model_dump(mode="json"), step)
        train_step = make_train_step(run)
        log = StepLog(self, metrics)
        with TrainProgress(run, step, self.mesh, console) as progress, contextlib.closing(metrics):
            while step < run.steps and stop.signal is None:
                batch = next(self.iterator)
                state, sums = train_step(state, put_batch(batch, self.mesh, run.training.accumulate))
                step += 1
                log.add(step, batch, sums)
                last = step == run.steps
                if last or step % run.log.every == 0:
                    log.flush(progress)
                if last or step % run.evaluation.every == 0:
                    log.flush(progress)
                    self._validate(state, step, metrics, progress)
                    log.restart()
                if last or step % run.checkpoint.every == 0:
                    log.flush(progress)
                    metrics.flush()
                    checkpoints.save(step, state, self.iterator, self.validation_loss)
                    log.restart()
            if stop.signal is not None:
                log.flush(progress)
                metrics.flush()
                checkpoints.save(step, state, self.iterator, self.validation_loss)
        return state

    @property
    def validation_loss(self) -> float | None:
        return None if self.validated is None else self.validated["loss"]

    def _validate(self, state: TrainState, step: int, metrics: Metrics, progress: TrainProgress) -> None:
        self.validated = self.validation(state.params)
        metrics.write("validation", step, self.validated)
        progress.validation(step, self.validated)


class StepLog:
    """Keeps steps' sums on the device until they are wanted, then writes a record a step."""

    def __init__(self, trainer: Trainer, metrics: Metrics):
        self.trainer, self.metrics = trainer, metrics
        self.waiting: list[tuple[int, float, dict[str, jax.Array]]] = []
        self.tokens = 0
        self.restart()

    def restart(self) -> None:
        """Tokens a second count from here: neither validation nor saving is training."""
        self.since = time.perf_counter()

    def add(self, step: int, batch: dict[str, np.ndarray], sums: dict[str, jax.Array]) -> None:
        count = float((self.trainer.token_bytes[batch["targets"]] * batch["weights"]).sum()) * jax.process_count()
        self.waiting.append((step, count, sums))
        self.tokens += batch["inputs"].size * jax.process_count()

    def flush(self, progress: TrainProgress) -> None:
        """Writes and shows what waits; stops the run when too many updates in a row were skipped.

        Raises:
            UserError: saying so.
        """
        if not self.waiting:
            return
        fetched = jax.device_get([sums for *_, sums in self.waiting])
        seconds = time.perf_counter() - self.since
        record: dict[str, float] = {}
        for (step, count, _), sums in zip(self.waiting, fetched, strict=True):
            record = step_record(sums, count)
            self.metrics.write("train", step, record)
            self._check(step, record)
        record["tokens_per_second"] = self.tokens / seconds
        progress.update(self.waiting[-1][0], record)
        self.waiting, self.tokens = [], 0
        self.restart()

    def _check(self, step: int, record: dict[str, float]) -> None:
        training = self.trainer.run.training
        if record["in_a_row"] > training.max_skipped:
            raise UserError(
                f"Training stopped at step {step}: {int(record['in_a_row'])} updates in a row were skipped for non-finite or "
                f"spiking gradients (training.max_skipped is {training.max_skipped}; the last norm was {record['grad_norm']:.3g}); "
                "lower optimizer.peak_lr, or raise training.spike."
            )


def step_record(sums: dict[str, np.ndarray], count: float) -> Record:
    """One step's record: means a token of the objective's sums, and what the optimiser saw. `count`: bytes of text predicted."""
    plain = ("grad_norm", "lr", "skipped", "in_a_row", "tokens")
    means = {name: float(value) for name, value in sums.items() if name not in plain}
    return mean_record(means, float(sums["tokens"]), count) | {name: float(sums[name]) for name in plain}


def mean_record(sums: dict[str, float], tokens: float, count: float) -> Record:
    """The sums over tokens as means: `loss` (nats), `accuracy`, ..., and `bits_per_byte` where tokens stand for bytes of text."""
    record = {name: value / max(tokens, 1.0) for name, value in sums.items()}
    record["accuracy"] = record.pop("hits")
    return record | ({"bits_per_byte": bits_per_byte(sums["nll"], count)} if count else {})


class Validation:
    """Loss on the same held-out batches every time."""

    def __init__(self, run: RunConfig, tokenizer: Tokenizer, mesh: jax.sharding.Mesh):
        batches = validation_batches(run.data, tokenizer, run.evaluation.batches, jax.process_index(), jax.process_count())
        self.mesh, self.batches = mesh, batches
        self.bytes = sum(float((tokenizer.token_bytes[b["targets"]] * b["weights"]).sum()) for b in batches) * jax.process_count()
        self.step = make_eval_step(run)

    def __call__(self, params) -> Record:
        """Loss in nats a token, accuracy, and bits a byte of text."""
        sums = jax.device_get([self.step(params, put_batch(batch, self.mesh)) for batch in self.batches])
        nll, hits, tokens = (sum(float(s[name]) for s in sums) for name in ("nll", "hits", "tokens"))
        record = mean_record({"nll": nll, "hits": hits}, tokens, self.bytes)
        return {"loss": record.pop("nll"), **record}


@dataclass
class StopSignal:
    """The signal that asked the run to end, None until one came."""

    signal: int | None = None


@contextlib.contextmanager
def stop_signals() -> Iterator[StopSignal]:
    """Turns the first SIGINT or SIGTERM into a request to end after this step; a second one is the system's."""
    stop = StopSignal()
    previous = {}

    def ask(number: int, frame) -> None:
        stop.signal = number
        signal.signal(number, previous[number])
        console.print(f"\n{signal.Signals(number).name}: ending after this step with a checkpoint (again: at once).")

    for number in (signal.SIGINT, signal.SIGTERM):
        previous[number] = signal.signal(number, ask)
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def check_resumable(run: RunConfig, folder: Path) -> None:
    """Refuses to resume another architecture, optimiser or order of the data.

    Raises:
        UserError: naming the fields that differ.
    """
    saved = load.load_run(str(folder / "config.yaml"))
    fields = list(differences(saved.model.model_dump(), run.model.model_dump(), "model"))
    what = "architecture"
    if not fields:
        fields = list(differences(_kept(saved), _kept(run), ""))
        what = "optimiser or order of data"
    if fields:
        raise UserError(f"{folder} was trained with another {what}; these fields differ: {'; '.join(fields[:5])}.")


def _kept(run: RunConfig) -> dict[str, Any]:
    """What the optimiser's state and the position in the data mean nothing without. Files may have been moved."""
    data, optimizer = run.data, run.optimizer
    rates = (optimizer.embedding_lr, optimizer.hidden_lr, optimizer.readout_lr)
    return {
        "seed": run.seed,
        "objective.kind": getattr(run.objective, "kind", ""),
        "optimizer.kind": optimizer.kind,
        "optimizer.(embedding_lr, hidden_lr, readout_lr) = 1": all(rate == 1.0 for rate in rates),
        "data.batch_size": data.batch_size,
        "data.packing": data.packing,
        "data.sequence_length": data.sequence_length,
        "data.sources": [source.model_dump(exclude={"path"}) for source in data.sources],
    }


def check_same_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Refuses to resume with other ids for the same text, wherever the tokenizer lies.

    Raises:
        UserError: the run was trained with another one.
    """
    saved = folder / "tokenizer"
    if not (saved / "tokenizer.json").is_file():
        return
    if load_tokenizer(HFTokenizer(path=str(saved))).fingerprint != tokenizer.fingerprint:
        raise UserError(f"{folder} was trained with another tokenizer than data.tokenizer; its own is {saved}.")


def check_prompt(run: RunConfig, tokenizer: Tokenizer) -> None:
    """Refuses, before the run, what its samples could not begin with.

    Raises:
        UserError: the prompt is empty and the tokenizer has no start token, or it leaves no room for new tokens.
    """
    if not run.evaluation.samples:
        return
    length = len(prompt_ids(tokenizer, run.evaluation.sample_prompt))
    if not length:
        raise UserError(
            "evaluation.sample_prompt is empty, and data.tokenizer has no start token to begin with; give one, or "
            "evaluation.samples=0."
        )
    if length >= run.model.max_length:
        raise UserError(
            f"evaluation.sample_prompt has {length} tokens, which leaves no room in model.max_length ({run.model.max_length})."
        )


def differences(a, b, path: str) -> Iterator[str]:
    """'path: saved -> given' for every leaf that differs."""
    if isinstance(a, dict) and isinstance(b, dict):
        for key in {**a, **b}:
            yield from differences(a.get(key), b.get(key), f"{path}.{key}".lstrip("."))
    elif isinstance(a, tuple | list) and isinstance(b, tuple | list) and len(a) == len(b):
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            yield from differences(x, y, f"{path}[{i}]")
    elif a != b:
        yield f"{path} is {a!r} there and {b!r} here" if not isinstance(a, tuple | list | dict) else f"{path} has another shape"


def describe_cost(run: RunConfig, mesh: jax.sharding.Mesh) -> None:
    """Tells what the run will cost before it starts."""
    batch = run.data.batch_size * run.data.sequence_length
    tokens = run.steps * batch
    flops = accounting.train_flops(run.model, run.data.sequence_length)
    written = sum(cost.entry_bytes for cost in accounting.layer_costs(run.model, run.data.sequence_length))
    device = f"{mesh.devices.flat[0].device_kind} device{'s' if mesh.size > 1 else ''}"
    console.print(
        f"[bold]{run.name}[/]: {accounting.human(accounting.parameters(run.model))} parameters; "
        f"a token adds up to {accounting.human(written, 'B')} of decode state",
        f"{accounting.human(tokens)} tokens: {run.steps:,} step{'s' if run.steps > 1 else ''} of {accounting.human(batch)}; "
        f"{accounting.human(flops * tokens, 'FLOPs')} on {mesh.size} {device}",
        sep="\n",
        highlight=False,
    )
