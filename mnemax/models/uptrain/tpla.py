"""mla to tpla: the latent in its principal components, the largest in the first slice (arXiv 2508.15881, section 4).

With g the scale of the latent's norm and U orthogonal, W_c U, U^T diag(g) U_k and U^T diag(g) U_v are the same attention, for the
norm sees no rotation. Principal components are uncorrelated: a slice's part of a logit is itself the best guess at all of it.
"""

from typing import TYPE_CHECKING

import numpy as np

from mnemax.layers.projections.mla import MLAConfig
from mnemax.layers.projections.tpla import TPLAConfig
from mnemax.models.uptrain.layers import Layer, Unfit, Weights, difference

if TYPE_CHECKING:
    from mnemax.layers.projections import ProjectionConfig


def sliced(layer: Layer, readers: list[Layer], new: "ProjectionConfig", reads: bool) -> Weights:
    """The layer with its latent in slices.

    Raises:
        Unfit: a field of mla is not the same after, or the memory is shared.
    """
    old = layer.projection
    assert isinstance(old, MLAConfig)
    assert isinstance(new, TPLAConfig)
    if layer.reads or reads or readers:
        raise Unfit("its memory is shared with another layer, which is not carried over from mla to tpla")
    if words := difference(old, MLAConfig(**new.model_dump(exclude={"kind", "slices"}))):
        raise Unfit(f"projection.{words}")
    w_c, u_k, u_v = (layer.weights[name].astype(np.float64) for name in ("w_c", "u_k", "u_v"))
    scale = layer.offset + layer.weights["c_norm.scale"].astype(np.float64)
    U = np.linalg.eigh(w_c.T @ layer.moment @ w_c)[1][:, ::-1]
    turned = lambda up: np.einsum("ri,r,rnh->inh", U, scale, up)  # noqa: E731
    norm = {"c_norm.scale": np.full(len(U), 1 - layer.offset)}
    return layer.weights | norm | {"w_c": w_c @ U, "u_k": turned(u_k), "u_v": turned(u_v)}
