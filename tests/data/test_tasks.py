"""Synthetic tasks: every answer follows from what was read, and from nothing less."""

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from pydantic import ValidationError

from mnemax import registry
from mnemax.data.sources.associative_recall import AssociativeRecallTask
from mnemax.data.sources.copying import CopyTask, SelectiveCopyTask
from mnemax.data.sources.group_words import ELEMENTS, GroupWordsTask
from mnemax.data.sources.joint_recall import JointRecallTask
from mnemax.data.sources.mqar import MqarTask
from mnemax.data.sources.needle import NeedleTask
from mnemax.data.sources.recall import FuzzyRecallTask, InContextRecallTask, NoisyRecallTask
from mnemax.data.sources.treecall import TreecallTask
from mnemax.data.sources.variable_tracking import VariableTrackingTask
from mnemax.data.sources.word_counts import CommonWordsTask, FrequentWordsTask
from mnemax.data.tasks import Example, TaskConfig

needle_sizes = dict(filler_symbols=8, key_symbols=32, value_symbols=8)

TASKS = {
    "mqar": MqarTask(vocab_size=32, length=32, pairs=4),
    "mqar, zeros": MqarTask(vocab_size=33, length=16, pairs=4, random_fill=False),
    "joint recall": JointRecallTask(min_contexts=1, max_contexts=4, min_keys=2, max_keys=4, alphabet=8),
    "associative recall": AssociativeRecallTask(pairs=8, alphabet=8),
    "treecall": TreecallTask(max_expansion=5, max_sentence=60),
    "copy": CopyTask(vocab_size=8, length=30, copied=5),
    "selective copy": SelectiveCopyTask(vocab_size=8, length=30, copied=5),
    "in-context recall": InContextRecallTask(length=32),
    "noisy recall": NoisyRecallTask(length=32),
    "fuzzy recall": FuzzyRecallTask(length=64),
    "fuzzy recall, uneven": FuzzyRecallTask(length=40, vocab_size=13, key_tokens=1, value_tokens=4),
    "parity": GroupWordsTask(group="parity", length=12),
    "S3": GroupWordsTask(group="S3", length=12),
    "A4": GroupWordsTask(group="A4", length=6),
    "needle": NeedleTask(length=48, **needle_sizes),
    "needle at a depth": NeedleTask(length=48, keys=4, depth=0.3, **needle_sizes),
    "needle, several keys": NeedleTask(length=64, keys=5, queries=2, **needle_sizes),
    "needle, several values": NeedleTask(length=64, keys=2, values_of_one_key=3, value_tokens=2, **needle_sizes),
    "needle, distractors": NeedleTask(length=64, keys=2, queries=2, distractors=3, **needle_sizes),
    "needle, in needles": NeedleTask(length=64, keys=None, value_tokens=1, **needle_sizes),
    "variable tracking": VariableTrackingTask(length=64, chains=3, hops=2, variable_symbols=16),
    "common words": CommonWordsTask(length=40, words=40, common=3, common_times=4),
    "common words, others twice": CommonWordsTask(length=40, words=20, common=3, common_times=4, other_times=2),
    "frequent words": FrequentWordsTask(length=128, words=24),
}
EACH = pytest.mark.parametrize("task", TASKS.values(), ids=TASKS.keys())


def test_every_kind_is_tested():
    kinds = {kind for kind, cls in registry.kinds("source").items() if issubclass(cls, TaskConfig)}
    assert kinds == {task.kind for task in TASKS.values()}


@EACH
def test_an_example_is_a_function_of_its_number(task):
    def same(a: Example, b: Example) -> bool:
        return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))

    example = task.number(3, seed=5)
    assert same(example, task.number(3, seed=5))
    validation = task.held_out()
    assert validation is not None and validation.examples is None
    others = [task.number(3, seed=6), task.number(4, seed=5), validation.number(3, seed=5)]
    assert not any(same(example, other) for other in others)


@EACH
def test_form(task):
    for number in range(50):
        inputs, targets, asked, distance = task.number(number)
        assert len(inputs) == len(targets) == len(asked) == len(distance) <= task.length
        assert min(inputs.min(), targets.min()) >= 0 and max(inputs.max(), targets.max()) < task.symbols
        assert set(asked) <= {0, 1} and asked.sum() > 0
        assert (distance[asked == 0] == 0).all() and (distance >= 0).all() and (distance <= np.arange(len(inputs))).all()
    assert 0 < task.chance < 1


# What the answer is at the end of `read`, found as a reader who knows the rules would.
type Solver = Callable[[TaskConfig, list[int]], int]


def solve_mqar(task, read):
    return dict(zip(read[0 : 2 * task.pairs : 2], read[1 : 2 * task.pairs : 2], strict=True))[read[-1]]


def solve_joint_recall(task, read):
    told, context = {}, None
    for i, token in enumerate(read):
        if token < task.alphabet:
            context = token
        elif token < 2 * task.alphabet:
            if i == len(read) - 1:
                return told[context, token]
            told.setdefault((context, token), read[i + 1])
    raise AssertionError


def solve_associative_recall(task, read):
    assert read[0] == 0 and read[-2] == 1
    return dict(zip(read[1:-2:2], read[2:-2:2], strict=True))[read[-1]]


def solve_copying(task, read):
    blank, copy = task.vocab_size - 2, task.vocab_size - 1
    content = [token for token in read if token < blank]
    return content[len(read) - 2 - read.index(copy)]


def solve_recall(task, read):
    return read[len(read) - read[-2::-1].index(read[-1]) - 1]


def solve_fuzzy_recall(task, read):
    half, blank = (task.vocab_size - 1) // 2, task.vocab_size - 1
    pairs: list[tuple[list[int], list[int]]] = []
    value_before = True
    for token in read:
        if token == blank:
            continue
        if token < half and value_before:
            pairs.append(([], []))
        value_before = token >= half
        pairs[-1][value_before].append(token)
    key, value = pairs.pop()
    (known,) = {tuple(v) for k, v in pairs if k == key}
    assert list(known[: len(value)]) == value
    return known[len(value)]


def solve_group_words(task, read):
    elements = [np.eye(len(p), dtype=int)[:, list(p)] for p in ELEMENTS[task.group]()]
    product = np.linalg.multi_dot([elements[0], elements[0], *(elements[token] for token in read)])
    return next(i for i, element in enumerate(elements) if (element == product).all())


def solve_needle(task, read):
    mark = task.symbols - 2
    told: dict[int, list[int]] = {}
    for i, token in enumerate(read):
        if token == mark:
            told.setdefault(read[i + 1], []).extend(read[i + 2 : i + 2 + task.value_tokens])
    question = len(read) - read[::-1].index(mark + 1)
    return told[read[question]][len(read) - 1 - question]


def solve_variable_tracking(task, read):
    set_, copy, ask = range(task.symbols - 3, task.symbols)
    values, copies = {}, {}
    for i, token in enumerate(read):
        if token == set_:
            values[read[i + 2]] = read[i + 1]
        elif token == copy:
            assert read[i + 2] in values.values() or read[i + 2] in copies.values()
            copies[read[i + 2]] = read[i + 1]
    variable = values[read[read.index(ask) + 1]]
    for _ in range(len(read) - 2 - read.index(ask)):
        variable = copies[variable]
    return variable


def solve_common_words(task, read):
    at = read.index(task.words)
    counts = Counter(read[:at])
    assert all(count == task.common_times or count <= task.other_times for count in counts.values())
    return [word for word, count in counts.items() if count == task.common_times][len(read) - 1 - at]


def solve_frequent_words(task, read):
    at = read.index(task.words + 1)
    ranked = Counter(read[:at]).most_common()
    assert ranked[0][0] == 0
    return ranked[len(read) - at][0]


SOLVERS: dict[str, Solver] = {
    "mqar": solve_mqar,
    "joint_recall": solve_joint_recall,
    "associative_recall": solve_associative_recall,
    "copy": solve_copying,
    "selective_copy": solve_copying,
    "in_context_recall": solve_recall,
    "noisy_recall": solve_recall,
    "fuzzy_recall": solve_fuzzy_recall,
    "group_words": solve_group_words,
    "needle": solve_needle,
    "variable_tracking": solve_variable_tracking,
    "common_words": solve_common_words,
    "frequent_words": solve_frequent_words,
}


@EACH
def test_answers_follow_from_what_was_read(task):
    if task.kind == "treecall":
        pytest.skip("a sentence does not tell its tree: test_task_recipes.py draws it again")
    for number in range(100):
        inputs, targets, asked, _ = task.number(number)
        for at in np.flatnonzero(asked):
            assert SOLVERS[task.kind](task, inputs[: at + 1].tolist()) == targets[at]


@EACH
def test_the_last_token_alone_tells_nothing(task):
    """A table from the token at the asked position to its most frequent answer, as good as a model without memory can be."""

    def cases(numbers: range) -> list[tuple[int, int]]:
        found = []
        for number in numbers:
            inputs, targets, asked, distance = task.number(number)
            told_before = (asked > 0) & (distance > 0)  # the first product of a group's word is its first letter
            found += zip(inputs[told_before].tolist(), targets[told_before].tolist(), strict=True)
        return found

    counts: dict[int, Counter[int]] = {}
    for token, answer in cases(range(800)):
        counts.setdefault(token, Counter())[answer] += 1
    test = cases(range(800, 1200))
    right = np.mean([token in counts and counts[token].most_common(1)[0][0] == answer for token, answer in test])
    # Where no word is an answer twice, the last one is known not to be the next. A fixed grammar has favourites.
    chance = 0.15 if task.kind == "treecall" else task.chance * (1 + 2 * task.chance)
    assert right < chance + 3.5 * np.sqrt(chance / len(test))


@EACH
def test_distance_is_to_where_it_was_told(task):
    for number in range(50):
        inputs, targets, asked, distance = task.number(number)
        at = np.flatnonzero(asked)
        told = at - distance[at]
        if task.kind in ("group_words", "common_words", "frequent_words"):
            assert (told == 0).all()
        elif task.kind == "variable_tracking":
            assert (inputs[told - 1] == targets[at]).all()
        else:
            assert (inputs[told] == targets[at]).all()
        if task.kind in ("in_context_recall", "noisy_recall"):
            for a, t in zip(at, told, strict=True):
                assert inputs[t - 1] == inputs[a] and inputs[a] not in inputs[t:a]


@pytest.mark.parametrize(
    ("cls", "fields", "says"),
    [
        (MqarTask, dict(length=63), r"length \(63\) is odd"),
        (MqarTask, dict(length=64, pairs=17), r"pairs \(17\) take length 68 or more, not 64"),
        (MqarTask, dict(vocab_size=16, length=64, pairs=8), r"pairs \(8\) must be below half of vocab_size \(16\)"),
        (JointRecallTask, dict(min_keys=9, max_keys=8), r"min_keys \(9\), max_keys \(8\) and alphabet \(16\)"),
        (JointRecallTask, dict(max_contexts=20), r"max_contexts \(20\) and alphabet \(16\)"),
        (AssociativeRecallTask, dict(pairs=9, alphabet=8), r"pairs \(9\) must be at most alphabet \(8\)"),
        (CopyTask, dict(length=32), r"copied \(16\) takes length 33 or more, not 32"),
        (InContextRecallTask, dict(length=7), r"length \(7\) is odd"),
        (FuzzyRecallTask, dict(vocab_size=6), r"key_tokens \(3\) and value_tokens \(3\) must be at most 2"),
        (FuzzyRecallTask, dict(length=11), r"length \(11\) must be at least 12"),
        (GroupWordsTask, dict(group="A3"), r"Input should be 'parity', 'S3'"),
        (NeedleTask, dict(length=64, keys=12), r"length \(64\) is too short .* take 65 tokens"),
        (NeedleTask, dict(length=9, keys=None), r"length \(9\) is too short .* take 10 tokens"),
        (NeedleTask, dict(length=1024, keys=None), r"keys \(203\) must be at most key_symbols \(64\)"),
        (NeedleTask, dict(keys=60, length=512, distractors=5), r"keys \(60\) and distractors \(5\) must together"),
        (NeedleTask, dict(queries=2), r"queries \(2\) must be at most keys \(1\)"),
        (NeedleTask, dict(keys=2, queries=2, depth=0.5), r"depth \(0.5\) is that of one needle"),
        (VariableTrackingTask, dict(chains=16), r"have 80 variables, more than variable_symbols \(64\)"),
        (VariableTrackingTask, dict(chains=3, value_symbols=2), r"chains \(3\) must be at most value_symbols \(2\)"),
        (VariableTrackingTask, dict(length=21), r"length \(21\) is too short .* take 22 tokens"),
        (CommonWordsTask, dict(other_times=6), r"other_times \(6\) must be below common_times \(6\)"),
        (CommonWordsTask, dict(length=70), r"length \(70\) must be at least 71"),
        (CommonWordsTask, dict(words=194), r"words \(194\) must be at least 195 to fill length \(256\)"),
        (FrequentWordsTask, dict(length=30), r"answers \(3\) cannot be told apart: in length \(30\)"),
    ],
)
def test_bad_input_is_one_sentence(cls, fields, says):
    with pytest.raises(ValidationError, match=says) as caught:
        cls(**fields)
    assert caught.value.error_count() == 1
