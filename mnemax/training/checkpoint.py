"""Checkpoints by orbax: asynchronous, atomic, a few kept; the newest that can be read is the one restored."""

import contextlib
import errno
import json
import math
import shutil
import subprocess
from collections.abc import Generator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mnemax.errors import UserError
from mnemax.evaluation.accounting import human
from mnemax.training.metrics import read

if TYPE_CHECKING:
    import grain
    from orbax.checkpoint.checkpoint_managers import PolicyCheckpointInfo

    from mnemax.configs.schema import CheckpointConfig, ModelConfig
    from mnemax.models.params import Params
    from mnemax.training.step import TrainState

PACKAGES = ("mnemax", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "numpy")


class Checkpoints:
    """The checkpoints of a run's folder: the training state and the data iterator's position, a step each."""

    def __init__(self, folder: Path, config: "CheckpointConfig"):
        import orbax.checkpoint as ocp
        from orbax.checkpoint.checkpoint_managers import AnyPreservationPolicy, EveryNSteps, LatestN

        self.best = BestValidated(config.keep_best, folder)
        kept: list[Any] = [LatestN(config.keep_last), self.best]
        if config.keep_every is not None:
            kept.append(EveryNSteps(config.keep_every))
        self.folder = folder
        self.manager = ocp.CheckpointManager(
            folder / "checkpoints",
            options=ocp.CheckpointManagerOptions(preservation_policy=AnyPreservationPolicy(kept), enable_async_checkpointing=True),
        )

    def save(self, step: int, state: "TrainState", iterator: "grain.DatasetIterator", validation_loss: float | None) -> None:
        """Begins to save; the files are written while training goes on.

        Raises:
            UserError: this save or the one before it could not be written, or a later step's is there; earlier checkpoints are
                untouched.
        """
        import grain
        import orbax.checkpoint as ocp

        if step in self.manager.all_steps():
            return
        if validation_loss is not None:
            self.best.losses[step] = validation_loss
        tree = as_tree(state)
        with self._writing():
            self.manager.wait_until_finished()
            _need_room(self.folder, tree)
            saved = self.manager.save(
                step, args=ocp.args.Composite(state=ocp.args.StandardSave(tree), data=grain.checkpoint.CheckpointSave(iterator))
            )
        if not saved:
            raise UserError(
                f"Checkpoint {step} was not written to {self.folder}: one of step {self.manager.latest_step()} is there."
            )

    def wait(self) -> None:
        """Returns when all is on disk.

        Raises:
            UserError: it could not be written.
        """
        with self._writing():
            self.manager.wait_until_finished()

    def restore(self, state: "TrainState", iterator: "grain.DatasetIterator") -> tuple["TrainState", list[str]]:
        """The newest readable checkpoint, laid out as `state` is, and what was wrong with newer ones; moves the iterator too.

        Newer ones are put aside, as checkpoints/STEP.unreadable: orbax writes none before a step that is there.

        Raises:
            UserError: there are checkpoints, and none can be read.
        """
        import grain
        import orbax.checkpoint as ocp

        wrong: dict[int, str] = {}
        for step in sorted(self.manager.all_steps(), reverse=True):
            try:
                restored = self.manager.restore(
                    step,
                    args=ocp.args.Composite(
                        state=ocp.args.StandardRestore(as_tree(state)), data=grain.checkpoint.CheckpointRestore(iterator)
                    ),
                )
                self._put_aside(list(wrong))
                return from_tree(state, restored["state"]), list(wrong.values())
            except Exception as error:  # noqa: BLE001 - whatever is wrong with one checkpoint, the one before it may be whole
                wrong[step] = f"checkpoint {step} cannot be read ({_brief(error)})"
        if wrong:
            raise UserError(f"{self.folder}/checkpoints: {'; '.join(wrong.values())}.")
        return state, []

    def _put_aside(self, steps: list[int]) -> None:
        import jax

        for step in steps:
            found, aside = (self.folder / "checkpoints" / f"{step}{suffix}" for suffix in ("", ".unreadable"))
            if jax.process_index() == 0:
                shutil.rmtree(aside, ignore_errors=True)
                found.rename(aside)
        if steps:
            self.manager.reload()

    def close(self) -> None:
        """Waits for what is being written.

        Raises:
            UserError: it could not be written.
        """
        with self._writing():
            self.manager.close()

    @contextlib.contextmanager
    def _writing(self) -> Generator[None]:
        try:
            yield
        except Exception as error:
            if not _is_refusal(error):
                raise
            steps = self.manager.all_steps()
            last = f"the last good checkpoint is of step {max(steps)}" if steps else "there is no earlier one"
            raise UserError(f"A checkpoint could not be written to {self.folder} ({_brief(error)}); {last}.") from error


class BestValidated:
    """Keeps the checkpoints of the lowest validation losses, each the newest one at the time of saving.

    The losses of a run that is resumed are those of its metrics.jsonl. Orbax's own policy forgets them, and then drops the best.
    """

    def __init__(self, count: int, folder: Path):
        self.count = count
        validated = [(r["step"], r["loss"]) for r in read(folder / "metrics.jsonl") if r["split"] == "validation"]
        steps = [int(path.name) for path in (folder / "checkpoints").glob("*") if path.name.isdigit()]
        self.losses = {at: loss for at in sorted(steps) for step, loss in validated if step <= at}  # the last one stays

    def should_preserve(self, checkpoints: "Sequence[PolicyCheckpointInfo]", *, context: Any) -> list[bool]:
        """For each checkpoint, whether it is among the best; those from before the first validation are not."""
        known = [one.step for one in checkpoints if math.isfinite(self.losses.get(one.step, math.inf))]
        best = sorted(known, key=self.losses.__getitem__)[: self.count]
        return [one.step in best for one in checkpoints]


def as_tree(state: "TrainState") -> dict[str, Any]:
    """The training state as nested dictionaries of arrays, free of this package's classes."""
    import jax

    leaves = jax.tree_util.tree_flatten_with_path((state.optimizer, state.guard))[0]
    rest = {jax.tree_util.keystr(path): leaf for path, leaf in leaves}
    return {"step": state.step, "params": state.params, "rest": rest}


def from_tree(like: "TrainState", tree: dict[str, Any]) -> "TrainState":
    """The inverse of `as_tree`."""
    import dataclasses

    import jax

    structure = jax.tree_util.tree_structure((like.optimizer, like.guard))
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_flatten_with_path((like.optimizer, like.guard))[0]]
    optimizer, guard = jax.tree_util.tree_unflatten(structure, [tree["rest"][path] for path in paths])
    return dataclasses.replace(like, step=tree["step"], params=tree["params"], optimizer=optimizer, guard=guard)


def load_params(folder: Path, config: "ModelConfig", step: int | None = None) -> tuple["Params", int]:
    """The parameters of a run's newest readable checkpoint (or of `step`), and its step; nothing else is read.

    Raises:
        UserError: there is no such checkpoint, or none can be read.
    """
    import jax
    import orbax.checkpoint as ocp

    from mnemax.models.params import weights

    root = folder / "checkpoints"
    steps = sorted((int(p.name) for p in root.glob("*") if p.name.isdigit()), reverse=True) if root.is_dir() else []
    if not steps or (step is not None and step not in steps):
        there = ", ".join(map(str, sorted(steps))) or "none"
        raise UserError(f"{folder} has no checkpoint{'' if step is None else f' of step {step}'} (there: {there}).")
    like = {name: jax.ShapeDtypeStruct(w.shape, jax.numpy.float32) for name, w in weights(config).items()}
    wrong = []
    for candidate in [step] if step is not None else steps:
        try:
            with ocp.PyTreeCheckpointer() as reader:
                args = ocp.args.PyTreeRestore(
                    {"params": like},
                    restore_args=ocp.checkpoint_utils.construct_restore_args({"params": like}),
                    partial_restore=True,
                )
                # orbax refuses relative paths
                return reader.restore((root / str(candidate) / "state").resolve(), args)["params"], candidate
        except Exception as error:  # noqa: BLE001 - an older checkpoint may be whole
            wrong.append(f"checkpoint {candidate} cannot be read ({_brief(error)})")
    raise UserError(f"{root}: {'; '.join(wrong)}.")


def save_params(folder: Path, params: "Params", step: int) -> None:
    """Writes parameters alone as a checkpoint that `load_params` reads.

    Raises:
        UserError: they could not be written.
    """
    import orbax.checkpoint as ocp

    try:
        _need_room(folder, params)
        with ocp.StandardCheckpointer() as writer:
            writer.save((folder / "checkpoints" / str(step) / "state").resolve(), {"params": params})
    except Exception as error:
        if not _is_refusal(error):
            raise
        raise UserError(f"A checkpoint could not be written to {folder} ({_brief(error)}).") from error


def save_environment(path: Path) -> None:
    """Writes the versions of the packages and the git revision that a run was made with."""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    revision, changed = _git("rev-parse", "HEAD"), bool(_git("status", "--porcelain"))
    path.write_text(json.dumps({"git": revision or None, "uncommitted": changed, "packages": versions}, indent=2) + "\n")


def _git(*command: str) -> str:
    """What git says of this package's folder; nothing where there is no git."""
    try:
        git = ["git", "-C", str(Path(__file__).parent), *command]
        return subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        return ""


def _need_room(folder: Path, tree: dict[str, Any]) -> None:
    """Refuses early what the disk has no room for: a write that fails on the way leaves tracebacks of tensorstore's threads."""
    import jax

    # Twice: each array is there a second time while orbax merges what was written.
    needed, free = 2 * sum(leaf.nbytes for leaf in jax.tree.leaves(tree)), shutil.disk_usage(folder).free
    if free < needed:
        raise OSError(errno.ENOSPC, f"No space left: it takes up to {human(needed, 'B')}, and {human(free, 'B')} are free")


def _is_refusal(error: Exception) -> bool:
    """Whether the file system refused; tensorstore says so by a ValueError."""
    return isinstance(error, OSError) or "No space left" in str(error) or "RESOURCE_EXHAUSTED" in str(error)


def _brief(error: Exception) -> str:
    text = error.strerror if isinstance(error, OSError) and error.strerror else f"{type(error).__name__}: {error}"
    return " ".join(text.split())[:160]
