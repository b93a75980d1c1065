"""A kernel equals the reference, forward and every gradient, over shapes that do not divide its blocks."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mnemax.kernels.attend import IMPLEMENTATIONS, attend
from tests.kernels.attention_problems import ALL, PROBLEMS, problem

OTHERS = sorted(IMPLEMENTATIONS.keys() - {"auto", "reference"})


@partial(jax.jit, static_argnames=("scale", "softcap", "implementation"))
def forward_and_gradients(q, k, v, mask, terms, *, scale, softcap, implementation):
    """Output, log-sum-exp, and gradients of a loss that depends on both through fixed random factors."""

    smooth = {name: term for name, term in terms.items() if name != "evict_at"}
    options = {"scale": scale, "softcap": softcap, "implementation": implementation}

    def loss(q, k, v, smooth):
        out, lse = attend(q, k, v, mask=mask, **(terms | smooth), **options)
        by_out, by_lse = (jax.random.normal(jax.random.key(i), x.shape) for i, x in enumerate((out, lse)))
        return jnp.sum(by_out * out) + jnp.sum(by_lse * jnp.where(jnp.isfinite(lse), lse, 0)), (out, lse)

    (dq, dk, dv, of_terms), (out, lse) = jax.grad(loss, argnums=(0, 1, 2, 3), has_aux=True)(q, k, v, smooth)
    return {"out": out, "lse": lse, "dq": dq, "dk": dk, "dv": dv, **of_terms}


def run(problem, implementation, dtype):
    inputs = (jnp.asarray(x, dtype) for x in (problem.q, problem.k, problem.v))
    found = forward_and_gradients(*inputs, problem.mask, problem.terms, **problem.options, implementation=implementation)
    return jax.device_get(found)


@pytest.mark.parametrize("implementation", OTHERS)
@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)
def test_equals_reference(problem, implementation):
    compare(problem, implementation, "float32", 2e-5)


@pytest.mark.parametrize("implementation", OTHERS)
@pytest.mark.parametrize("name", ["130", "window and sinks", "chunk over slots", "decode step", "all terms, soft cap"])
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
        value = value.astype(np.float32)
        some = tolerance * max(1.0, np.abs(value, where=np.isfinite(value), out=np.zeros_like(value)).max())
        np.testing.assert_allclose(found[name].astype(np.float32), value, tolerance, some, err_msg=name)


@pytest.mark.parametrize("implementation", sorted(IMPLEMENTATIONS))
@pytest.mark.parametrize("name", ["chunk over slots", "all terms over slots"])
def test_what_no_query_sees_is_never_used(name, implementation):
    """Huge values in a slot that the mask hides change nothing, in either direction."""
    problem = PROBLEMS[name]
    index = problem.mask.k_index
    hidden = jnp.broadcast_to(index if index.ndim == 3 else index[..., None], problem.k.shape[:3]) < 0
    k, v = (jnp.where(hidden[..., None], 1e30, x) for x in (problem.k, problem.v))
    terms = {name: x if name == "evict_at" else jnp.where(hidden, 1e20, x) for name, x in problem.terms.items()}
    poisoned = replace(problem, k=k, v=v, terms=terms)
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


@pytest.mark.parametrize("name", ["all terms, soft cap", "all terms over slots"])
@pytest.mark.parametrize("heads", [2, 4], ids=["as many shards as key heads", "more shards than key heads"])
def test_terms_are_carried_to_every_shard(name, heads):
    """On an Explicit mesh, each device has its own rows and heads of what the keys add."""
    problem = PROBLEMS[name]
    mesh = jax.make_mesh((2, heads), ("data", "tensor"), axis_types=(jax.sharding.AxisType.Explicit,) * 2)
    expected = run(problem, "xla", "float32")
    split = "tensor" if problem.k.shape[2] % heads == 0 else None

    def lay(x, *axes):
        return jax.device_put(x, jax.NamedSharding(mesh, jax.sharding.PartitionSpec(*axes)))

    with jax.set_mesh(mesh):
        q = lay(problem.q, "data", None, "tensor", None)
        k, v = (lay(x, "data", None, split, None) for x in (problem.k, problem.v))
        terms = {name: lay(x, "data", None, split) for name, x in problem.terms.items()}
        index = problem.mask.k_index
        index = lay(index, *(("data", None, split) if index.ndim == 3 else ()))
        mask = replace(
            problem.mask, q_index=lay(problem.mask.q_index), q_start=lay(problem.mask.q_start, "data", None), k_index=index
        )
        found = run(replace(problem, q=q, k=k, v=v, mask=mask, terms=terms), "xla", "float32")
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, 2e-5, 2e-5, err_msg=name)


@pytest.mark.parametrize("implementation", OTHERS)
def test_what_the_backward_pass_needs_is_linear_in_the_sequence(implementation):
    """Four times the tokens leave four times the bytes for the backward pass, not sixteen times."""

    def saved(T):
        long = problem(T, terms=ALL)

        def forward(q, k, v, key_bias, key_slope):
            terms = long.terms | {"key_bias": key_bias, "key_slope": key_slope}
            return attend(q, k, v, mask=long.mask, **terms, **long.options, implementation=implementation)

        smooth = (long.terms["key_bias"], long.terms["key_slope"])
        backward = jax.eval_shape(lambda *inputs: jax.vjp(forward, *inputs)[1], long.q, long.k, long.v, *smooth)
        return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(backward))

    assert saved(1024) == pytest.approx(4 * saved(256), rel=0.01)
