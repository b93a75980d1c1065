"""gqa to gqa: keys and values of several heads, or of several layers, become their mean.

Heads: W'_k[g] = mean of W_k[h] over the heads h of group g (Ainslie et al. 2023, arXiv 2305.13245, section 2.1).
Layers: W_k of a layer that others read = mean of W_k over it and them (MLKV, arXiv 2406.09297; Wu et al. 2024, arXiv 2410.14442).
"""

from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from mnemax.layers.projections.gqa import GQAConfig
from mnemax.models.uptrain.layers import Layer, Unfit, Weights, difference

if TYPE_CHECKING:
    from mnemax.layers.projections import ProjectionConfig

ENTRY = ("w_k", "w_v", "b_k", "b_v", "k_norm.scale", "k_conv.taps", "v_conv.taps")
"""Weights that a layer has for what it writes."""


def pooled(layer: Layer, readers: list[Layer], new: "ProjectionConfig", reads: bool) -> Weights:
    """Everything of queries and outputs is copied; what is written is pooled, first over heads, then over layers.

    Raises:
        Unfit: the projections differ in more than `kv_heads` (and in when keys are rotated), or `kv_heads` does not divide.
    """
    assert isinstance(new, GQAConfig)
    own = {name: value for name, value in layer.weights.items() if name not in ENTRY}
    for each in (layer, *readers):
        assert isinstance(each.projection, GQAConfig)
        if words := difference(each.projection, new, but=("kv_heads", "rotated")):
            raise Unfit(f"projection.{words}")
        if not reads and each.projection.kv_heads % new.kv_heads:
            before, after = each.projection.kv_heads, new.kv_heads
            raise Unfit(f"projection.kv_heads is {before} before and {after} after, which does not divide it")
    if reads:
        return own
    writers = [each for each in (layer, *readers) if not each.reads]
    written = [name for name in ENTRY if name in layer.weights]
    return own | {name: np.mean([pool(w.weights[name], new.kv_heads) for w in writers], axis=0) for name in written}


def pool(weight: np.ndarray, heads: int) -> Float[np.ndarray, "*lead heads H"]:
    """The mean over each group of neighbouring heads of [..., K, H]; one vector for all heads stays."""
    if weight.ndim == 1:
        return weight
    *lead, K, H = weight.shape
    return weight.reshape(*lead, heads, K // heads, H).mean(-2, dtype=np.float64)
