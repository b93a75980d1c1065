"""RMSNorm against its formula in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mnemax.configs.load import load_model
from mnemax.layers.norm import NormConfig, RMSNorm
from mnemax.layers.param import Init


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("over", [1, 2], ids=["one axis", "heads together"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rms_norm(offset, over, dtype):
    rng = np.random.default_rng(0)
    x = jnp.asarray(3 * rng.standard_normal((2, 5, 4, 8)), dtype)
    init = Init(load_model("mha"), jax.random.key(0))
    norm = RMSNorm(x.shape[-over:], ("heads", "head")[-over:], NormConfig(eps=1e-3, offset=offset), init)
    assert (norm.scale[...] + offset == 1).all()
    norm.scale.set_value(jnp.asarray(rng.standard_normal(x.shape[-over:]), jnp.float32))
    exact = np.asarray(x, np.float64)
    axes = tuple(range(-over, 0))
    expected = exact / np.sqrt((exact**2).mean(axes, keepdims=True) + 1e-3) * (offset + np.asarray(norm.scale[...], np.float64))
    found = norm(x)
    assert found.dtype == x.dtype
    np.testing.assert_allclose(found.astype(jnp.float32), expected, rtol=1e-5 if dtype == "float32" else 1e-2, atol=1e-6)
