"""Samples as long as a length allows."""

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from mnemax.errors import UserError
from mnemax.evaluation.ruler import Sample, Task

if TYPE_CHECKING:
    from mnemax.data.tokenizers import Tokenizer


class Fitted(NamedTuple):
    """A sample, the ids of its prompt, and its size in pieces of haystack."""

    sample: Sample
    prompt: list[int]
    size: int


def spell(tokenizer: "Tokenizer", sample: Sample) -> list[int]:
    """Ids of context and question, each encoded alone: what is kept of a context must not depend on what is asked afterwards."""
    start = [] if tokenizer.bos is None else [tokenizer.bos]
    return start + tokenizer.encode(sample.context) + tokenizer.encode(sample.question + sample.answer_prefix)


def draw(task: Task, number: int, size: int, length: int, seed: int = 0) -> Sample:
    """Sample `number` at a size, always the same one."""
    return task.sample(random.Random(f"{seed} {number}"), size, length)


def allowance(task: Task, name: str, tokenizer: "Tokenizer", length: int, samples: int, seed: int = 0) -> int:
    """How many tokens may be answered with: RULER's number, or more where the tokenizer takes more to say one of the answers.

    Raises:
        UserError: the tokenizer cannot spell the task.
    """
    needed = task.new_tokens
    for number in range(samples):
        sample = draw(task, number, task.smallest(length), length, seed)
        said = " " + ", ".join(sample.answers[:1] if task.any_answer else sample.answers)
        for text in (sample.question, said):
            if not spells(tokenizer, text):
                raise UserError(
                    f"The model's tokenizer, of {tokenizer.vocab_size} ids, cannot spell the task {name}: {text.strip()!r}."
                )
        needed = max(needed, len(tokenizer.encode(said)))
    return needed


def spells(tokenizer: "Tokenizer", text: str) -> bool:
    """Whether a text comes back from its ids, up to case and spaces."""
    try:
        back = tokenizer.decode(tokenizer.encode(text))
    except UserError:
        return False
    return back.casefold().split() == text.casefold().split()


def fit(task: Task, name: str, tokenizer: "Tokenizer", number: int, length: int, allowed: int, seed: int = 0) -> Fitted:
    """Sample `number`, as large as prompt and `allowed` new tokens fit `length`.

    Raises:
        UserError: the task does not fit the length, or has too little to fill it with.
    """

    def at(size: int) -> Fitted:
        sample = draw(task, number, size, length, seed)
        return Fitted(sample, spell(tokenizer, sample), size)

    smallest = at(task.smallest(length))
    if len(smallest.prompt) + allowed > length:
        raise UserError(
            f"The task {name} takes at least {len(smallest.prompt)} tokens and {allowed} for the answer, "
            f"more than its length ({length})."
        )
    largest = at(_largest(lambda size: len(at(size).prompt) + allowed <= length, smallest.size, task.limit))
    if task.limit is not None and largest.size >= task.limit:
        raise UserError(f"The task {name} has {task.limit} pieces of haystack, too few to fill a length of {length} tokens.")
    return largest


def _largest(fits: Callable[[int], bool], low: int, limit: int | None) -> int:
    """A size that fits while the next one does not, or else the limit; `low` fits."""
    high = max(2 * low, 8)
    while (within := limit is None or high < limit) and fits(high):
        low, high = high, 2 * high
    if not within:
        assert limit is not None
        if fits(limit):
            return limit
        high = limit
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
