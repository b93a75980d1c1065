"""A kernel equals the reference, forward and every gradient, over shapes that do not divide its blocks."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mnemax.kernels.attend import IMPLEMENTATIONS, attend
from tests.kernels.attention_problems import PROBLEMS

OTHERS = sorted(IMPLEMENTATIONS.keys() - {"auto", "reference"})


@partial(jax.jit, static_argnames=("scale", "softcap", "implementation"))
def forward_and_gradients(q, k, v, mask, *, scale, softcap, implementation):
    """Output, log-sum-exp, and gradients of a loss that depends on both through fixed random factors."""

    def loss(q, k, v):
        out, lse = attend(q, k, v, mask=mask, scale=scale, softcap=softcap, implementation=implementation)
        by_out, by_lse = (jax.random.normal(jax.random.key(i), x.shape) for i, x in enumerate((out, lse)))
        return jnp.sum(by_out * out) + jnp.sum(by_lse * jnp.where(jnp.isfinite(lse), lse, 0)), (out, lse)

    gradients, (out, lse) = jax.grad(loss, argnums=(0, 1, 2), has_aux=True)(q, k, v)
    return {"out": out, "lse": lse, **dict(zip(("dq", "dk", "dv"), gradients, strict=True))}


def run(problem, implementation, dtype):
    inputs = (jnp.asarray(x, dtype) for x in (problem.q, problem.k, problem.v))
    options = {"scale": problem.scale, "softcap": problem.softcap, "implementation": implementation}
    return jax.device_get(forward_and_gradients(*inputs, problem.mask, **options))


@pytest.mark.parametrize("implementation", OTHERS)
@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)
def test_equals_reference(problem, implementation):
    compare(problem, implementation, "float32", 2e-5)


@pytest.mark.parametrize("implementation", OTHERS)
@pytest.mark.parametrize("name", ["130", "window and sinks", "chunk over slots", "decode step"])
def test_equals_reference_in_bfloat16(name, implementation):
    compare(PROBLEMS[name], implementation, "bfloat16", 5e-2)


def compare(problem, implementation, dtype, tolerance):
    found, expected = (run(problem, name, dtype) for name in (implementation, "reference"))
    blind = np.isneginf(expected["lse"])
    assert (found["out"][blind] == 0).all()
    assert np.array_equal(np.isneginf(found["lse"]), blind)
    for name, value in expected.items():
        assert found[name].dtype == value.dtype, name
        assert name == "lse" or np.isfinite(found[name].astype(np.float32)).all(), name
        np.testing.assert_allclose(found[name].astype(np.float32), value.astype(np.float32), tolerance, tolerance, err_msg=name)


@pytest.mark.parametrize("implementation", sorted(IMPLEMENTATIONS))
def test_what_no_query_sees_is_never_used(implementation):
    """Huge values in a slot that the mask hides change nothing, in either direction."""
    problem = PROBLEMS["chunk over slots"]
    hidden = problem.mask.k_index[..., None, None] < 0
    poisoned = replace(problem, k=jnp.where(hidden, 1e30, problem.k), v=jnp.where(hidden, 1e30, problem.v))
    found, expected = (run(either, implementation, "float32") for either in (poisoned, problem))
    for name, value in expected.items():
        assert np.array_equal(found[name], value), name


def test_head_counts_that_do_not_divide_are_refused():
    problem = PROBLEMS["seven"]
    two = jnp.repeat(problem.k, 2, axis=2)
    with pytest.raises(ValueError, match="3 query heads are not a multiple of 2 key heads"):
        attend(problem.q, two, two, mask=problem.mask, scale=1.0)


def test_an_unknown_implementation_is_refused():
    with pytest.raises(ValueError, match="unknown implementation 'fast'; known: auto"):
        run(PROBLEMS["seven"], "fast", "float32")
