"""Synthetic tasks: lengths, places and frequencies are those of the recipes, groups are groups, and grammars grammars."""

from collections import Counter

import numpy as np
import pytest
from scipy import stats

from mnemax.data.examples import draw_weighted, previous
from mnemax.data.sources.associative_recall import AssociativeRecallTask
from mnemax.data.sources.copying import CopyTask, SelectiveCopyTask
from mnemax.data.sources.group_words import GroupWordsTask, table
from mnemax.data.sources.joint_recall import JointRecallTask
from mnemax.data.sources.mqar import MqarTask
from mnemax.data.sources.needle import NeedleTask
from mnemax.data.sources.recall import FuzzyRecallTask, NoisyRecallTask
from mnemax.data.sources.treecall import Grammar, TreecallTask, grammar, sentence
from mnemax.data.sources.word_counts import CommonWordsTask, FrequentWordsTask
from mnemax.errors import UserError

needle_sizes = dict(filler_symbols=8, key_symbols=32, value_symbols=8)
small_treecall = TreecallTask(max_expansion=5, max_sentence=60)


def gaps_of(task: MqarTask, examples: int) -> np.ndarray:
    """In how many steps of two after the pairs each key comes back, [examples, pairs]."""
    places = []
    for number in range(examples):
        example = task.number(number)
        at = np.flatnonzero(example.asked)
        keys = example.inputs[: 2 * task.pairs : 2]
        offset = np.array([a for key in keys for a in at if example.inputs[a] == key]) - 2 * task.pairs
        assert len(offset) == task.pairs and (offset % 2 == 0).all()
        places.append(offset // 2)
    return np.stack(places)


@pytest.mark.parametrize("power", [0.01, 1.0])
def test_mqar_gaps_follow_the_power_law(power):
    task = MqarTask(vocab_size=64, length=26, pairs=1, power=power)
    counts = np.bincount(gaps_of(task, 4000)[:, 0], minlength=12)
    law = power * np.arange(1, 13) ** (power - 1)
    assert stats.chisquare(counts, 4000 * law / law.sum()).pvalue > 0.01


def test_mqar_gaps_are_drawn_one_after_another():
    """The i-th pair's place, against draws without replacement by numpy, which draws in turn."""
    task = MqarTask(vocab_size=64, length=24, pairs=4)
    law = np.arange(1, 9) ** -0.99
    rng = np.random.default_rng(0)
    expected = np.stack([rng.choice(8, 4, replace=False, p=law / law.sum()) for _ in range(4000)])
    found = gaps_of(task, 4000)
    for pair in range(4):
        both = [np.bincount(places[:, pair], minlength=8) for places in (found, expected)]
        assert stats.chi2_contingency(both).pvalue > 0.01


def test_draw_weighted_may_draw_all():
    assert sorted(draw_weighted(np.random.default_rng(0), np.array([0.1, 5.0, 1.0]), 3)) == [0, 1, 2]


@pytest.mark.parametrize("vocab_size", [64, 65])
def test_mqar_vocabulary(vocab_size):
    task = MqarTask(vocab_size=vocab_size, length=40, pairs=10)
    fill, seen_keys, seen_values = set(), set(), set()
    for number in range(300):
        inputs, targets, asked, _ = task.number(number)
        keys, values = inputs[:20:2], inputs[1:20:2]
        assert len(set(keys)) == len(set(values)) == 10
        assert asked.sum() == 10 and sorted(inputs[asked > 0]) == sorted(keys) and sorted(targets[asked > 0]) == sorted(values)
        seen_keys |= set(keys.tolist())
        seen_values |= set(values.tolist())
        fill |= set(inputs[20:][asked[20:] == 0].tolist())
    assert seen_keys == set(range(1, 32)) and seen_values == set(range(32, vocab_size)) and fill == set(range(vocab_size))
    zeros = task.model_copy(update={"random_fill": False}).number(0)
    assert (zeros.inputs[20:][zeros.asked[20:] == 0] == 0).all()


def test_joint_recall_has_the_lengths_of_the_paper():
    task = JointRecallTask()
    lengths = np.array([len(task.number(number).inputs) for number in range(2000)])
    assert abs(lengths.mean() - 462) < 3.5 * lengths.std() / np.sqrt(2000)
    assert lengths.min() >= 110 and lengths.max() <= 1056 == task.length
    assert task.symbols == 48 and task.chance == 0.0625


def test_associative_recall_has_the_form_of_the_paper():
    task = AssociativeRecallTask()
    inputs, targets, asked, _ = task.number(0)
    assert len(inputs) == 69 and task.symbols == 2 + 4096 + 4096 and inputs[-1] == inputs[65] == 1
    assert np.flatnonzero(asked).tolist() == [66] and targets[66] == inputs[67]
    assert len(set(inputs[1:65])) == 64


def test_copying_spaces():
    task = SelectiveCopyTask(length=64, copied=4)
    places = np.stack([np.flatnonzero(task.number(n).inputs < 14) for n in range(2000)])
    assert (task.number(0).inputs[places[:, -1] + 1] == task.vocab_size - 1).all()
    blanks = np.diff(places, axis=1, prepend=-1) - 1
    assert (blanks.sum(axis=1) == 64 - 2 * 4 - 1).all()
    # A blank stands before each token of content with probability 1/4, whatever the others do.
    assert abs(blanks.mean(axis=0) - 55 / 4).max() < 3.5 * blanks.std() / np.sqrt(2000)
    assert abs(blanks.var(axis=0) / (55 * 3 / 16) - 1).max() < 0.15
    assert (np.flatnonzero(CopyTask().number(0).inputs != 14) == [*range(16), 239]).all()


def test_noise_is_a_fifth_of_the_pairs():
    task = NoisyRecallTask(length=256)
    noise = np.stack([task.number(n).inputs.reshape(-1, 2) >= 16 for n in range(200)])
    assert (noise[..., 0] == noise[..., 1]).all() and not noise[:, -1].any()
    assert abs(noise[:, :-1, 0].mean() - 0.2) < 0.01
    assert NoisyRecallTask(noise=1).number(0).asked.sum() == 1


def test_fuzzy_motifs():
    """Keys of 1 to 3 tokens, all as likely, and no token twice in one of them."""
    task, sizes = FuzzyRecallTask(), Counter()
    for number in range(300):
        is_key = (inputs := task.number(number).inputs) < 7
        ends = np.flatnonzero(np.diff(np.concatenate([[False], is_key, [False]]).astype(int)))
        for start, stop in ends.reshape(-1, 2):
            assert len(set(inputs[start:stop])) == stop - start
            sizes[stop - start] += 1
    assert set(sizes) == {1, 2, 3}
    # A long pair more often does not fit at the end, and pads instead.
    assert abs(np.array([sizes[i] for i in (1, 2, 3)]) / sizes.total() - 1 / 3).max() < 0.03


@pytest.mark.parametrize(
    ("group", "order", "classes"),
    [
        ("parity", 2, 2),
        ("S3", 6, 3),
        ("A4", 12, 4),
        ("S4", 24, 5),
        ("A5", 60, 5),
        ("Z60", 60, 60),
        ("A4xZ5", 60, 20),
        ("S5", 120, 7),
    ],
)
def test_tables_are_those_of_groups(group, order, classes):
    product = np.array(table(group))
    everyone = np.arange(order)
    assert product.shape == (order, order)
    assert (product[0] == everyone).all() and (product[:, 0] == everyone).all()
    assert (product[product] == product[everyone[:, None, None], product]).all()
    inverse = np.argmax(product == 0, axis=1)
    assert (product[everyone, inverse] == 0).all() and (product[inverse, everyone] == 0).all()
    conjugates = product[product, inverse[:, None]]  # [g, x] -> g x g^-1
    assert len({tuple(sorted(set(column))) for column in conjugates.T.tolist()}) == classes
    assert GroupWordsTask(group=group).symbols == order


def test_grammar_is_drawn_as_told():
    rules, rule_sums, head_sums = grammar(1, terminals=20, nonterminals=400, max_depth=10, max_rules=5, max_expansion=10)
    assert grammar(1, 20, 400, 10, 5, 10).rules == rules != grammar(2, 20, 400, 10, 5, 10).rules
    assert Counter(map(len, rules)).keys() == set(range(1, 6))
    assert {len(rule) for of_one in rules for rule in of_one} == set(range(1, 10))
    assert [len(sums) for sums in rule_sums] == [len(of_one) - 1 for of_one in rules]
    assert {len(sums) for sums in head_sums} == {19}
    below = {~symbol for of_one in rules for rule in of_one for symbol in rule if symbol < 0}
    heights: dict[int, int] = {}

    def height(nonterminal: int) -> int:
        if nonterminal not in heights:
            heights[nonterminal] = 1 + max((height(~s) for rule in rules[nonterminal] for s in rule if s < 0), default=0)
        return heights[nonterminal]

    assert below and max(map(height, range(400))) <= 10
    # The deepest become terminals alone; those with 360 deeper ones to choose from become them 360 times in 380.
    parts = [np.mean([symbol < 0 for rule in of_one for symbol in rule]) for of_one in rules]
    assert min(parts) == 0 and max(parts) > 0.9


def derivable(rules: list[list[list[int]]], tokens: list[int], parents: list[int]) -> set[int]:
    """Which nonterminals this tree can be of: every token's children, in order, are the symbols of a rule."""
    children: dict[int, list[int]] = {i: [] for i in range(-1, len(tokens))}
    for i, parent in enumerate(parents):
        children[parent].append(i)

    def says(symbol: int, i: int) -> bool:
        return tokens[i] == symbol and not children[i] if symbol >= 0 else ~symbol in possible(i)

    def possible(head: int) -> set[int]:
        below = children[head]
        return {
            n for n, of_one in enumerate(rules)
            if any(len(rule) == len(below) and all(map(says, rule, below)) for rule in of_one)
        }  # fmt: skip

    (root,) = children[-1]
    assert root == len(tokens) - 1 and all(parent > i for i, parent in enumerate(parents[:-1]))
    return possible(root)


def test_sentences_are_of_the_grammar():
    of_rules = grammar(0, 20, 40, 10, 5, 10)
    drawn = [sentence(of_rules, np.random.default_rng(seed), 60) for seed in range(200)]
    kept = [one for one in drawn if one is not None]
    assert len(kept) < 200 and max(len(tokens) for tokens, _ in kept) <= 60
    for tokens, parents in kept:
        assert derivable(of_rules.rules, tokens, parents)


def test_treecall_asks_for_parents():
    task = small_treecall
    of_rules, lengths = grammar(0, 20, 40, 10, 5, 5), []
    for number in range(300):
        inputs, targets, asked, _ = task.number(number)
        rng = task.rng(number)
        while (drawn := sentence(of_rules, rng, 60)) is None or (np.array(drawn[0]) + 2).tolist() != inputs[1:-4].tolist():
            assert drawn is None or len(drawn[0]) < 3 or len(set(drawn[0])) < len(drawn[0])
        (at,) = np.flatnonzero(asked)
        assert at == len(inputs) - 3 and inputs[0] == 0 and inputs[at - 1] == inputs[-1] == 1
        child = max(i for i, token in enumerate(drawn[0]) if token + 2 == inputs[at])
        assert targets[at] == drawn[0][drawn[1][child]] + 2
        lengths.append(len(drawn[0]))
    assert min(lengths) >= 3 and max(lengths) <= 60 and max(lengths) > 30


def test_chance_of_treecall_is_that_of_its_favourite_answer():
    task = small_treecall
    answers = Counter(int(task.number(number, seed=1).targets[-3]) for number in range(2000))
    assert task.chance == pytest.approx(answers.most_common(1)[0][1] / 2000, abs=0.02)


def test_a_grammar_without_sentences_says_so():
    with pytest.raises(UserError, match=r"grammar_seed 0 has hardly a sentence of 3 to 3 tokens \(max_sentence\)"):
        TreecallTask(max_sentence=3, max_expansion=40, max_rules=1).number(0)


def test_unbounded_sentences_are_given_up():
    assert sentence(Grammar([[[~0, ~0]]], [[]], [[0.5]]), np.random.default_rng(0), 100) is None


def test_needles_lie_at_their_depth():
    for depth, start in [(0.0, 0), (0.25, 50), (1.0, 200)]:
        assert (NeedleTask(length=210, depth=depth, **needle_sizes).number(0).inputs == 48).nonzero()[0].tolist() == [start]
    for depth in np.linspace(0, 1, 40):
        task = NeedleTask(length=505, keys=20, depth=float(depth), **needle_sizes)
        example = task.number(1)
        at = np.flatnonzero(example.asked)
        start = (at - example.distance[at])[0] - 2
        assert abs(start - depth * 495) <= 3 and (example.inputs == 48).sum() == 20


def test_needles_lie_anywhere():
    task = NeedleTask(length=70, keys=4, **needle_sizes)
    at = task.length - 4
    depths = [(at - task.number(n).distance[at] - 2) / (65 - 5) for n in range(2000)]
    assert abs(np.mean(depths) - 0.5) < 0.03 and np.quantile(depths, 0.05) < 0.1 and np.quantile(depths, 0.95) > 0.9


def test_a_haystack_of_needles_is_full():
    task = NeedleTask(length=128, keys=None)
    assert task.planted == 24 and (task.number(0).inputs[:123] >= 64).sum() == 120


def test_distractors_are_said_again_and_again():
    task = NeedleTask(length=128, distractors=3)
    needles = task.number(0).inputs[3:123].reshape(24, 5)
    times = Counter(map(tuple, needles.tolist()))
    asked = tuple(needles[needles[:, 1] == task.number(0).inputs[124]][0].tolist())
    assert times.pop(asked) == 1 and len(times) == 3 and sum(times.values()) == 23 and min(times.values()) >= 7


def test_filler_has_four_successors():
    filler = NeedleTask(length=4000, depth=1.0).number(0).inputs[:3990]
    steps = Counter(((filler[1:] - filler[:-1]) % 64).tolist())
    assert len(steps) == 4 and min(steps.values()) > 900 and len(set(filler)) == 64


def test_words_come_as_often_as_told():
    task = CommonWordsTask()
    counts = sorted(Counter(task.number(0).inputs[:245].tolist()).values())
    assert counts == [1] * 185 + [6] * 10
    inputs = FrequentWordsTask(length=1004).number(0).inputs[:1000]
    counts = sorted(Counter(inputs.tolist()).values(), reverse=True)
    law = np.arange(1, 66) ** -2.0
    expected = 1000 * law / law.sum()
    assert (counts[1:] == np.floor(expected[1 : len(counts)])).all() and 0 < counts[0] - expected[0] < 65


def test_previous():
    assert previous(np.array([5, 3, 5, 5, 3, 9])).tolist() == [-1, -1, 0, 2, 1, -1]
