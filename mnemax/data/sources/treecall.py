"""Associative treecall: which token is the head of this one, in a sentence of a random grammar."""

import functools
from bisect import bisect
from typing import Literal, NamedTuple, override

import numpy as np
from pydantic import Field

from mnemax.configs.base import NonNegativeInt, PositiveInt
from mnemax.data.examples import ask
from mnemax.data.tasks import Example, TaskConfig
from mnemax.errors import UserError

BOS, EOS, TERMINALS = 0, 1, 2
TERMINAL_WEIGHT = 20  # of all terminals together, where each nonterminal that may stand in a rule weighs 1
ATTEMPTS = 1000
CHANCE_SAMPLE = 2000  # examples


class Grammar(NamedTuple):
    """A probabilistic context-free grammar with heads. A symbol s >= 0 is a terminal, s < 0 the nonterminal ~s."""

    rules: list[list[list[int]]]
    """The right-hand sides of each nonterminal."""
    rule_sums: list[list[float]]
    """Cumulative probabilities of each nonterminal's rules, the last one left out."""
    head_sums: list[list[float]]
    """Cumulative probabilities of each nonterminal's head, the last one left out."""


@functools.lru_cache
def grammar(seed: int, terminals: int, nonterminals: int, max_depth: int, max_rules: int, max_expansion: int) -> Grammar:
    """The random grammar of a seed."""
    rng = np.random.default_rng(seed)
    depths = rng.integers(1, max_depth + 1, size=nonterminals)

    def symbol(deeper: np.ndarray) -> int:
        drawn = int(rng.integers(TERMINAL_WEIGHT + len(deeper)))
        return int(rng.integers(terminals)) if drawn < TERMINAL_WEIGHT else ~int(deeper[drawn - TERMINAL_WEIGHT])

    rules = []
    for depth in depths:
        deeper = np.flatnonzero(depths > depth)
        sizes = rng.integers(1, max_expansion, size=rng.integers(1, max_rules + 1))
        rules.append([[symbol(deeper) for _ in range(size)] for size in sizes])
    return Grammar(
        rules,
        [np.cumsum(rng.dirichlet(np.ones(len(of_one))))[:-1].tolist() for of_one in rules],
        [np.cumsum(rng.dirichlet(np.ones(terminals)))[:-1].tolist() for _ in rules],
    )


def sentence(grammar: Grammar, rng: np.random.Generator, limit: int) -> tuple[list[int], list[int]] | None:
    """A sentence's terminals, and the position of each one's parent (-1: it has none); None where it exceeds `limit` terminals.

    A nonterminal becomes the symbols of a rule and then, on their right, its head. The head is the parent of the terminals among
    them and of the heads of the nonterminals among them.
    """
    random = rng.random
    tokens: list[int] = []
    nodes: list[int] = []
    parents: list[int] = []
    heads = 0
    stack = [(~int(rng.integers(len(grammar.rules))), -1, -1)]
    while stack:
        symbol, node, parent = stack.pop()
        if symbol >= 0:
            tokens.append(symbol)
            nodes.append(node)
            parents.append(parent)
            continue
        nonterminal = ~symbol
        stack.append((bisect(grammar.head_sums[nonterminal], random()), heads, parent))
        rule = grammar.rules[nonterminal][bisect(grammar.rule_sums[nonterminal], random())]
        stack.extend((symbol, -1, heads) for symbol in reversed(rule))
        heads += 1
        if len(tokens) + len(stack) > limit:
            return None
    place = {node: i for i, node in enumerate(nodes)}
    place[-1] = -1
    return tokens, [place[parent] for parent in parents]


def questions(tokens: list[int], parents: list[int]) -> dict[int, list[int]]:
    """Every parent that can be asked for -> its children that are the rightmost of their token: a question means those."""
    rightmost = {token: i for i, token in enumerate(tokens)}
    found: dict[int, list[int]] = {}
    for child in rightmost.values():
        if parents[child] >= 0:
            found.setdefault(parents[child], []).append(child)
    return found


class TreecallTask(TaskConfig):
    """Associative treecall (Arora et al. 2025, arXiv 2505.15105): the parent of a token in the tree of the sentence it stands in.

    `BOS sentence EOS child parent EOS`, asked at the child, which means the rightmost token of its kind. One random grammar, which
    its seed fixes, makes every sentence. Tokens: 0 BOS, 1 EOS, then the terminals.
    """

    kind: Literal["treecall"] = "treecall"
    terminals: int = Field(20, ge=2)
    nonterminals: PositiveInt = 40
    max_depth: PositiveInt = 10
    """Nonterminals are of depth 1 to this, and become deeper ones only."""
    max_rules: PositiveInt = 5
    """Rules of a nonterminal: 1 to this."""
    max_expansion: int = Field(10, ge=2)
    """Symbols of a rule and its head: 2 to this."""
    max_sentence: int = Field(1024, ge=3)
    """Longer sentences are drawn again, as are those shorter than 3."""
    grammar_seed: NonNegativeInt = 0

    def _grammar(self) -> Grammar:
        return grammar(self.grammar_seed, self.terminals, self.nonterminals, self.max_depth, self.max_rules, self.max_expansion)

    def _question(self, rng: np.random.Generator) -> tuple[list[int], int, int]:
        """A sentence, and where in it the child and the parent stand that are asked for."""
        rules = self._grammar()
        for _ in range(ATTEMPTS):
            drawn = sentence(rules, rng, self.max_sentence)
            if drawn is not None and len(drawn[0]) >= 3 and (found := questions(*drawn)):
                parent = list(found)[rng.integers(len(found))]
                return drawn[0], found[parent][rng.integers(len(found[parent]))], parent
        raise UserError(
            f"treecall: the grammar of grammar_seed {self.grammar_seed} has hardly a sentence of 3 to {self.max_sentence} tokens "
            "(max_sentence); another grammar_seed, or a larger max_sentence, max_expansion or max_rules, may have."
        )

    @override
    def example(self, rng: np.random.Generator) -> Example:
        terminals, child, parent = self._question(rng)
        tokens = np.full(len(terminals) + 5, EOS)
        tokens[0] = BOS
        tokens[1:-4] = terminals
        tokens[1:-4] += TERMINALS
        tokens[-3], tokens[-2] = tokens[1 + child], tokens[1 + parent]
        return ask(tokens, np.array([len(tokens) - 3]), told=1 + parent)

    @property
    @override
    def length(self) -> int:
        return self.max_sentence + 5

    @property
    @override
    def symbols(self) -> int:
        return TERMINALS + self.terminals

    @property
    @override
    def chance(self) -> float:
        """How often the most frequent answer is right; the grammar's heads are not equally likely."""
        return _most_frequent(self)


@functools.lru_cache
def _most_frequent(task: TreecallTask) -> float:
    answers = []
    for number in range(CHANCE_SAMPLE):
        example = task.number(number)
        answers.append(int(example.targets[-3]))
    return max(map(answers.count, set(answers))) / len(answers)
