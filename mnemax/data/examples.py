"""What the generators of synthetic tasks share: marking what is asked, drawing, and hiding things in filler."""

import numpy as np
from jaxtyping import Float, Integer

from mnemax.data.tasks import Example

FILLER_STEPS = np.array([1, 3, 7, 12])


def ask(
    tokens: Integer[np.ndarray, " n"],
    at: Integer[np.ndarray, " asked"],
    told: Integer[np.ndarray, " asked"] | int,
    answers: Integer[np.ndarray, " asked"] | None = None,
) -> Example:
    """The example that reads `tokens` and is asked at the positions `at`.

    Args:
        tokens: the whole sequence.
        at: positions that are asked.
        told: for each, the position of the latest token that its answer follows from.
        answers: what is asked for; None: the next token.
    """
    targets = np.zeros(len(tokens), np.int64)
    targets[:-1] = tokens[1:]
    if answers is not None:
        targets[at] = answers
    asked = np.zeros(len(tokens), np.float32)
    asked[at] = 1
    distance = np.zeros(len(tokens), np.int64)
    distance[at] = at - told
    return Example(tokens, targets, asked, distance)


def draw(rng: np.random.Generator, pool: int, count: int) -> Integer[np.ndarray, " count"]:
    """Draws `count` different numbers below `pool`, in the order drawn."""
    # Of few numbers a permutation is made faster than `choice` checks its arguments.
    return rng.permutation(pool)[:count] if pool < 512 else rng.choice(pool, count, replace=False)


GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def uniform(stream: int, at: Integer[np.ndarray, " *shape"]) -> Float[np.ndarray, " *shape"]:
    """Numbers of [0, 1), float64, each a function of a stream and a place in it: SplitMix64 (Steele et al. 2014), entered anywhere.

    Neither `stream` nor a place may be negative. A generator of its own for every example would take longer than the example.
    """

    def mixed(x: np.ndarray) -> np.ndarray:
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))

    begin = mixed(np.array([stream], np.uint64) * GOLDEN)
    return (mixed(begin + (at.astype(np.uint64) + np.uint64(1)) * GOLDEN) >> np.uint64(11)) * 2.0**-53


def draw_weighted(rng: np.random.Generator, weights: Float[np.ndarray, " n"], count: int) -> Integer[np.ndarray, " count"]:
    """Draws `count` different indices one after another, each with the weights of those left; in the order drawn.

    The first `count` arrivals of n exponential clocks, whose rates are the weights, are exactly that.
    """
    arrival = rng.standard_exponential(len(weights)) / weights
    first = np.argpartition(arrival, count - 1)[:count]
    return first[np.argsort(arrival[first])]


def previous(codes: Integer[np.ndarray, " n"]) -> Integer[np.ndarray, " n"]:
    """For each code the index of the latest equal one before it, -1 where it is the first."""
    order = codes.argsort(kind="stable")
    ordered = codes[order]
    found = np.empty(len(codes), np.int64)
    found[order[:1]] = -1
    found[order[1:]] = np.where(ordered[1:] == ordered[:-1], order[:-1], -1)
    return found


def filler(rng: np.random.Generator, count: int, symbols: int) -> Integer[np.ndarray, " count"]:
    """A haystack: a random walk on `symbols` tokens, each of which has four successors, equally likely."""
    return np.cumsum(FILLER_STEPS[rng.integers(len(FILLER_STEPS), size=count)]) % symbols


def spread(
    rng: np.random.Generator, count: int, size: int, room: int, rank: int = 0, depth: float | None = None
) -> Integer[np.ndarray, " count"]:
    """Where `count` things of `size` tokens each start in `room` tokens, in order; every gap between them may be empty.

    With a `depth`, the thing of that `rank` has this fraction of all that is free before it.
    """
    free = room - count * size
    if depth is None:
        gaps = rng.integers(free + 1, size=count)
    else:
        fixed = round(depth * free)
        gaps = np.concatenate([rng.integers(fixed + 1, size=rank), [fixed], rng.integers(fixed, free + 1, size=count - rank - 1)])
    gaps.sort()
    return gaps + size * np.arange(count)
