"""The gated delta rule: a matrix a head that fades, and in which a key's old value is replaced rather than added to.

    S_t = e^{g_t} S_{t-1} + k_t (beta_t (v_t - e^{g_t} S_{t-1}^T k_t))^T        o_t = S_t^T q_t

Yang et al. 2024 (arXiv 2412.06464), equation 10; without the decay, DeltaNet (arXiv 2406.06484). Keys should have unit length, else
a write may overshoot.
"""

from typing import Literal, override

from mnemax.layers.memories import EntrySpec
from mnemax.layers.memories.linear import Linear, MatrixConfig


class DeltaConfig(MatrixConfig):
    """One matrix a head; each token replaces the share `beta` of what its key held by its value, after all faded by `log_decay`."""

    takes = frozenset({"log_decay", "beta"})
    needs = frozenset({"beta"})

    kind: Literal["delta"] = "delta"

    @override
    def build(self, entry: EntrySpec, init) -> Linear:
        return Linear(self.chunk)

    @override
    def flops(self, context: int, projection, model) -> float:
        return super().flops(context, projection, model) + 2.0 * self.size(projection.entry(model))  # what the key held
