"""Accuracy on the answers of synthetic tasks."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, override

import numpy as np

from mnemax import registry
from mnemax.configs.base import PositiveInt
from mnemax.data.tasks import Example, TaskConfig
from mnemax.errors import UserError
from mnemax.evaluation.measures import MeasureConfig, Progress, Result, Subject
from mnemax.evaluation.scoring import Score, scores

if TYPE_CHECKING:
    from mnemax.data.sources import SourceConfig as Source
else:
    Source = registry.union("source")


class RecallConfig(MeasureConfig):
    """Loss and accuracy on the answers of tasks, on examples that no training draws, in all and by how far back they were told."""

    kind: Literal["recall"] = "recall"
    tasks: tuple[Source, ...] = ()
    """Empty: the tasks that the run validates on, or else those that it trains on."""
    examples: PositiveInt = 256
    """Of each task."""

    @override
    def __call__(self, subject: Subject, progress: Progress) -> Result:
        tasks = [task.model_copy(update={"split": "test"}) for task in tasks_of(self, subject)]
        for task in tasks:
            check_fits(task, subject)
        total, results, everything = len(tasks) * self.examples, [], []
        for t, task in enumerate(tasks):
            examples = [task.number(i) for i in range(self.examples)]
            rows = [(example.inputs, example.targets) for example in examples]
            scored = []
            for score in scores(subject.model, rows, task.length, subject.batch):
                scored.append(score)
                progress(t * self.examples + len(scored), total)
            everything += zip(examples, scored, strict=True)
            settings = task.model_dump(exclude={"weight", "examples", "split"}, exclude_defaults=True)
            results.append({"task": {"kind": str(task), **settings}, "chance": task.chance, **summary(examples, scored)})
        if len(results) == 1:
            return results[0]
        return {
            "chance": sum(result["chance"] for result in results) / len(results),
            **summary([example for example, _ in everything], [score for _, score in everything]),
            "parts": results,
        }


def tasks_of(config: RecallConfig, subject: Subject) -> list[TaskConfig]:
    """The tasks that are asked.

    Raises:
        UserError: there are none.
    """
    data = subject.data
    for sources in (config.tasks, data.validation if data else (), data.sources if data else ()):
        if tasks := [source for source in sources if isinstance(source, TaskConfig)]:
            return tasks
    raise UserError("The measure 'recall' has no tasks: the run reads none, so name some in its field `tasks`.")


def check_fits(task: TaskConfig, subject: Subject) -> None:
    """
    Raises:
        UserError: the task has more symbols than the model, or longer examples.
    """
    config = subject.model.config
    if task.symbols > config.vocab_size:
        raise UserError(f"The task {task} has {task.symbols} symbols, more than model.vocab_size ({config.vocab_size}).")
    if task.length > config.max_length:
        raise UserError(f"The task {task} has examples of {task.length} tokens, more than model.max_length ({config.max_length}).")


def summary(examples: Sequence[Example], scored: Sequence[Score]) -> Result:
    """Means over all that was asked, and by distance in powers of two."""
    asked = np.concatenate([example.asked > 0 for example in examples])
    distance = np.concatenate([example.distance for example in examples])[asked]
    nll, right = (np.concatenate([getattr(score, name) for score in scored])[asked] for name in ("nll", "right"))
    bins = []
    low = 1
    while low <= distance.max(initial=0):
        inside = (distance >= low) & (distance < 2 * low)
        if inside.any():
            bins.append({"from": low, "to": 2 * low - 1, "accuracy": float(right[inside].mean()), "answers": int(inside.sum())})
        low *= 2
    return {"accuracy": float(right.mean()), "loss": float(nll.mean()), "answers": int(asked.sum()), "by_distance": bins}
