"""What several seeds say together, and which cells no other cell beats."""

import math
from collections.abc import Sequence
from typing import NamedTuple


class Estimate(NamedTuple):
    """A mean over seeds; `half` is half the width of its confidence interval, None where one seed cannot tell."""

    mean: float
    half: float | None
    seeds: int


def estimate(values: Sequence[float], confidence: float = 0.95) -> Estimate | None:
    """Mean and Student-t interval of independent values (mean +- t * s / sqrt(n), n - 1 degrees of freedom); None of none."""
    import numpy as np
    from scipy.stats import t

    if not values:
        return None
    n = len(values)
    quantile = float(t.ppf((1 + confidence) / 2, n - 1)) if n > 1 else None
    half = None if quantile is None else quantile * float(np.std(values, ddof=1)) / math.sqrt(n)
    return Estimate(float(np.mean(values)), half, n)


def pareto(costs: Sequence[float], qualities: Sequence[float]) -> list[int]:
    """Indices of the points that no other matches at less cost or beats at no more, by rising cost.

    Args:
        costs: less is better.
        qualities: more is better; give losses negated.
    """
    front: list[int] = []
    for i in sorted(range(len(costs)), key=lambda i: (costs[i], -qualities[i])):
        same = front and (costs[i], qualities[i]) == (costs[front[-1]], qualities[front[-1]])
        if not front or same or qualities[i] > qualities[front[-1]]:
            front.append(i)
    return front
