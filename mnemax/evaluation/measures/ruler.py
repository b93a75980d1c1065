"""Long context in text: RULER's tasks, answered by greedy decoding."""

import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal, override

import numpy as np
from pydantic import Field

from mnemax.configs.base import PositiveInt
from mnemax.errors import UserError
from mnemax.evaluation.measures import MeasureConfig, Progress, Result, Subject
from mnemax.evaluation.ruler import Task
from mnemax.evaluation.ruler.fitting import Fitted, allowance, fit
from mnemax.evaluation.ruler.tasks import Name, task
from mnemax.models.generate import Generator, Sampling

if TYPE_CHECKING:
    from mnemax.data.tokenizers import Tokenizer

DEPTH_BINS = 5


class RulerConfig(MeasureConfig):
    """A task of RULER's (Hsieh et al. 2024, arXiv 2404.06654), or the pass key: the share of the answers that are said.

    Prompts are as long as they may be. In all, by length, and by depth where one needle is asked for.
    """

    kind: Literal["ruler"] = "ruler"
    task: Name = "niah_single_1"
    lengths: tuple[PositiveInt, ...] = Field((1024, 2048, 4096), min_length=1)
    """Tokens of prompt and answer together."""
    samples: PositiveInt = 50
    """Of each length."""
    haystack: Literal["noise", "text"] | None = None
    """Five sentences again and again, or running text; null: the task's own."""
    path: str | None = None
    """Text for the haystack (a file, a glob or a folder); for `qa` a JSON file in SQuAD's layout. Null: what the package has."""

    @override
    def __call__(self, subject: Subject, progress: Progress) -> Result:
        tokenizer = text_tokenizer(subject, self.kind, self.lengths)
        asked = task(self.task, self.haystack, self.path)
        answering = Answering(subject)
        scores: list[float] = []
        depths: list[float | None] = []
        for length in self.lengths:
            allowed = allowance(asked, self.task, tokenizer, length, self.samples)
            fitted = [fit(asked, self.task, tokenizer, number, length, allowed) for number in range(self.samples)]
            for score in answering(asked, fitted, allowed):
                scores.append(score)
                progress(len(scores), len(self.lengths) * self.samples)
            depths += [one.sample.depth for one in fitted]
        by_length = np.reshape(scores, (len(self.lengths), self.samples)).mean(axis=1)
        return {
            "accuracy": float(np.mean(scores)),
            "samples": len(scores),
            "by_length": [{"length": n, "accuracy": float(mean)} for n, mean in zip(self.lengths, by_length, strict=True)],
            "by_depth": list(by_depth(scores, depths)),
        }


class Answering:
    """A model's greedy answers, scored."""

    def __init__(self, subject: Subject) -> None:
        self.tokenizer, self.batch = subject.model.tokenizer, subject.batch
        self.generator = Generator(subject.model.config, subject.model.params, Sampling(temperature=0))

    def __call__(self, asked: Task, fitted: Sequence[Fitted], allowed: int) -> Iterator[float]:
        """The score of each sample, in order, out of at most `allowed` new tokens."""
        assert self.tokenizer is not None
        stop = [] if self.tokenizer.eos is None else [self.tokenizer.eos]
        size = min(self.batch, len(fitted))
        for batch in itertools.batched(fitted, size):
            filled = [one.prompt for one in batch] + [batch[0].prompt] * (size - len(batch))  # one size: one program
            rows = self.generator.generate(filled, allowed, stop=stop)
            for one, row in zip(batch, rows, strict=False):
                yield asked.score(self.tokenizer.decode(row), one.sample.answers)


def text_tokenizer(subject: Subject, measure: str, lengths: Sequence[int]) -> "Tokenizer":
    """The tokenizer of a model that can be asked in text, at these lengths.

    Raises:
        UserError: it has none, or a length exceeds the model's.
    """
    tokenizer, longest = subject.model.tokenizer, subject.model.config.max_length
    if tokenizer is None:
        raise UserError(f"The measure '{measure}' needs a tokenizer, and the folder has none.")
    if max(lengths) > longest:
        raise UserError(f"The measure '{measure}' has lengths of {max(lengths)}, more than model.max_length ({longest}).")
    return tokenizer


def by_depth(scores: Sequence[float], depths: Sequence[float | None]) -> Iterator[Result]:
    """Mean scores of the samples that have a depth, in equal bins of it."""
    known = [(score, depth) for score, depth in zip(scores, depths, strict=True) if depth is not None]
    for b in range(DEPTH_BINS):
        inside = [score for score, depth in known if min(int(depth * DEPTH_BINS), DEPTH_BINS - 1) == b]
        if inside:
            bounds = {"from": b / DEPTH_BINS, "to": (b + 1) / DEPTH_BINS}
            yield bounds | {"accuracy": float(np.mean(inside)), "samples": len(inside)}
