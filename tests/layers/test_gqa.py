"""Grouped queries against a plain formula in numpy."""

import numpy as np

from tests.layers.plain import X, attended, heads, layer_and_weights, logits, normed, turned


def test_values_normed_without_a_scale():
    c, out, w = layer_and_weights("qwen3", "value_norm=true")
    q, k, v = (heads(X, w[name]) for name in ("w_q", "w_k", "w_v"))
    q, k = (turned(normed(x, w[name]), 1e6) for x, name in ((q, "q_norm.scale"), (k, "k_norm.scale")))
    z = logits(q, k, c.projection.head_width**-0.5)
    np.testing.assert_allclose(out, attended(z, normed(v, np.ones(v.shape[-1])), w["w_o"]), rtol=1e-4, atol=1e-4)
