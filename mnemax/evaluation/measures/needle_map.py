"""A needle's accuracy at every depth of contexts of several lengths, in tokens or in text."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Literal, override

import numpy as np
from pydantic import Field

from mnemax.configs import load
from mnemax.configs.base import Fraction, PositiveInt
from mnemax.data.sources.needle import NeedleTask
from mnemax.evaluation.measures import MeasureConfig, Progress, Result, Subject
from mnemax.evaluation.measures.recall import check_fits
from mnemax.evaluation.measures.ruler import Answering, text_tokenizer
from mnemax.evaluation.ruler.fitting import allowance, fit
from mnemax.evaluation.ruler.needles import Needles, PassKey
from mnemax.evaluation.ruler.tasks import OneNeedle, task
from mnemax.evaluation.scoring import scores

LONGEST = 4096  # where no lengths are named


class NeedleMapConfig(MeasureConfig):
    """Accuracy over depth and length: the usual heat map of a needle in a haystack.

    A model that learnt `needle` in tokens is teacher-forced, and right where all tokens of the value are. Another is asked in text,
    and answers by greedy decoding.
    """

    kind: Literal["needle_map"] = "needle_map"
    needle: NeedleTask | None = None
    """In tokens; null: the needle task that the run reads, where it reads one."""
    text: OneNeedle = "passkey"
    """The task in text, where there is none in tokens."""
    lengths: tuple[PositiveInt, ...] = ()
    """Tokens; empty: a quarter, half and all of the run's sequence length, or else of the model's longest, at most 4096."""
    depths: tuple[Fraction, ...] = Field((0.0, 0.25, 0.5, 0.75, 1.0), min_length=1)
    samples: PositiveInt = 20
    """Of each depth and length."""

    @override
    def __call__(self, subject: Subject, progress: Progress) -> Result:
        data = subject.data
        whole = data.sequence_length if data else min(subject.model.config.max_length, LONGEST)
        lengths = self.lengths or (whole // 4, whole // 2, whole)
        read = (data.validation + data.sources) if data else ()
        needle = self.needle or next((source for source in read if isinstance(source, NeedleTask)), None)
        answered = self._in_text(subject, lengths) if needle is None else self._in_tokens(subject, needle)
        cells = len(self.depths) * self.samples
        accuracy: list[list[float]] = []
        for row, length in enumerate(lengths):
            right = []
            for score in answered(length):
                right.append(score)
                progress(row * cells + len(right), len(lengths) * cells)
            accuracy.append(np.reshape(right, (len(self.depths), self.samples)).mean(axis=1).tolist())
        grid = {"lengths": list(lengths), "depths": list(self.depths), "accuracy": accuracy}
        return {"accuracy": float(np.mean(accuracy)), "samples": len(lengths) * cells, "grid": grid}

    def _in_tokens(self, subject: Subject, needle: NeedleTask) -> Callable[[int], Iterator[float]]:
        """Whether each sample of a length was right, depth by depth."""

        def answered(length: int) -> Iterator[float]:
            examples = []
            for depth in self.depths:
                changed: dict[str, Any] = {"length": length, "depth": depth, "split": "test"}
                placed = load.validate(NeedleTask, needle.model_dump() | changed, "needle_map")
                check_fits(placed, subject)
                examples += [placed.number(number) for number in range(self.samples)]
            rows = [(example.inputs, example.targets) for example in examples]
            for example, score in zip(examples, scores(subject.model, rows, length, subject.batch), strict=True):
                yield float(score.right[example.asked > 0].all())

        return answered

    def _in_text(self, subject: Subject, lengths: tuple[int, ...]) -> Callable[[int], Iterator[float]]:
        """The score of each sample of a length, depth by depth."""
        tokenizer = text_tokenizer(subject, self.kind, lengths)
        answering, asked = Answering(subject), task(self.text)
        assert isinstance(asked, Needles | PassKey)

        def answered(length: int) -> Iterator[float]:
            allowed = allowance(asked, self.text, tokenizer, length, self.samples)
            placed = [replace(asked, depth=depth) for depth in self.depths]
            fitted = [fit(p, self.text, tokenizer, number, length, allowed) for p in placed for number in range(self.samples)]
            return answering(asked, fitted, allowed)

        return answered
