"""A list of layers as the stages that repeat them."""

import json
from typing import Any


def stages_from_layers(layers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Stages (as in ModelConfig) that spell out to these layers, with as few layers to compile as possible, then as few stages.

    A repeated pattern becomes one stage and what remains another: 26 layers of Gemma-3 are 4 x (5 local, 1 global), then 2 x local.
    """
    keys = [json.dumps(layer, sort_keys=True) for layer in layers]
    count = len(keys)
    # best[start]: layers to compile, stages, and the stages' (- layers covered, period), from `start` on
    best: list[tuple[int, int, list[tuple[int, int]]]] = [(0, 0, [])] * (count + 1)
    for start in reversed(range(count)):
        best[start] = min(
            (period + best[end][0], 1 + best[end][1], [(start - end, period), *best[end][2]])
            for period in range(1, count - start + 1)
            for end in range(start + period, start + period * _repeats(keys, start, period) + 1, period)
        )
    stages, start = [], 0
    for covered, period in best[0][2]:
        stages.append({"repeat": -covered // period, "layers": layers[start : start + period]})
        start -= covered
    return stages


def _repeats(keys: list[str], start: int, period: int) -> int:
    """How often the `period` layers from `start` on come in a row."""
    same = 0
    while start + period + same < len(keys) and keys[start + same] == keys[start + period + same]:
        same += 1
    return 1 + same // period
