"""gqa to gqa: keys and values of several heads, or of several layers, become their mean.

Heads: W'_k[g] = mean of W_k[h] over the heads h of group g (Ainslie et al. 2023, arXiv 2305.13245, section 2.1).
Layers: W_k of a layer that others read = mean of W_k over it and them (MLKV, arXiv 2406.09297; Wu et al. 2024, arXiv 2410.14442).
"""

import re
from typing import TYPE_CHECKING

import numpy as np

from mnemax.layers.projections.gqa import GQAConfig
from mnemax.models.uptrain.layers import Layer, Unfit, Weights, difference
from mnemax.sharding import Axes

if TYPE_CHECKING:
    from mnemax.layers.projections import ProjectionConfig

WRITES = re.compile(r"[wb]_[kv]$|[kv]_")
"""How names of weights begin that a layer has for what it writes."""


def pooled(layer: Layer, readers: list[Layer], new: "ProjectionConfig", reads: bool) -> Weights:
    """Everything of queries and outputs is copied; what is written is pooled, first over heads, then over layers.

    Raises:
        Unfit: the projections differ in more than `kv_heads` (and in when keys are rotated), or `kv_heads` does not divide.
    """
    assert isinstance(new, GQAConfig)
    for each in (layer, *readers):
        assert isinstance(each.projection, GQAConfig)
        if words := difference(each.projection, new, but=("kv_heads", "rotated")):
            raise Unfit(f"projection.{words}")
        if not reads and each.projection.kv_heads % new.kv_heads:
            before, after = each.projection.kv_heads, new.kv_heads
            raise Unfit(f"projection.kv_heads is {before} before and {after} after, which does not divide it")
    if readers and new.dynamic_rank is not None:
        raise Unfit(f"projection.dynamic_rank is {new.dynamic_rank}, and such taps of several layers have no mean")
    own = {name: value for name, value in layer.weights.items() if not WRITES.match(name)}
    if reads:
        return own
    writers = [each for each in (layer, *readers) if not each.reads]
    return own | {
        name: np.mean([pool(each.weights[name], axes, new.kv_heads) for each in writers], axis=0)
        for name, axes in layer.axes.items()
        if WRITES.match(name)
    }


def pool(weight: np.ndarray, axes: Axes, heads: int) -> np.ndarray:
    """The mean over each of `heads` groups of neighbours along the axis "kv_heads"; without such an axis, as it is."""
    if "kv_heads" not in axes:
        return weight
    at = axes.index("kv_heads")
    return weight.reshape(*weight.shape[:at], heads, -1, *weight.shape[at + 1 :]).mean(at + 1, dtype=np.float64)
