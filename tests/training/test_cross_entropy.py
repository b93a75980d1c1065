"""Cross-entropy by chunks against log_softmax of all logits, values and gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mnemax.training.cross_entropy import cross_entropy

OPTIONS = [
    {},
    {"scale": 0.3},
    {"softcap": 2.0},
    {"z_loss": 0.1},
    {"scale": 1.7, "softcap": 3.0, "z_loss": 0.01},
]


def inputs(T: int = 13):
    keys = jax.random.split(jax.random.key(0), 4)
    x, matrix = jax.random.normal(keys[0], (3, T, 8)), jax.random.normal(keys[1], (8, 29))
    return x, matrix, jax.random.randint(keys[2], (3, T), 0, 29), jax.random.uniform(keys[3], (3, T))


def plain(x, matrix, targets, weights, scale=1.0, softcap=None, z_loss=0.0):
    logits = scale * (x @ matrix)
    if softcap is not None:
        logits = softcap * jnp.tanh(logits / softcap)
    nll = -jnp.sum(weights * jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], axis=-1)[..., 0])
    z = jnp.sum(weights * jax.nn.logsumexp(logits, axis=-1) ** 2)
    hits = jnp.sum(weights * (jnp.argmax(logits, axis=-1) == targets))
    return nll + z_loss * z, nll, z, hits


@pytest.mark.parametrize("chunk", [1, 4, 13, 512])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_values_and_gradients(options, chunk):
    x, matrix, targets, weights = inputs()

    def run(function, **more):
        loss = lambda x, matrix: (3 * (r := function(x, matrix, targets, weights, **options, **more))[0], r)  # noqa: E731
        return jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))(x, matrix)

    found, expected = run(cross_entropy, chunk=chunk), run(plain)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5), found, expected)


def test_without_gradients_the_values_are_the_same():
    found, expected = cross_entropy(*inputs(), z_loss=0.1, chunk=4), plain(*inputs(), z_loss=0.1)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_a_tie_is_no_hit():
    """A readout of zeros says nothing, so it is right nowhere."""
    x, matrix, targets, weights = inputs()
    assert cross_entropy(x, 0 * matrix, targets, weights)[3] == 0


def test_large_logits_do_not_overflow():
    x, matrix, targets, weights = inputs()
    loss, gradient = jax.value_and_grad(lambda x: cross_entropy(x, matrix, targets, weights)[0])(1e4 * x)
    assert np.isfinite(loss)
    assert np.isfinite(gradient).all()


def test_bfloat16_sums_in_float32():
    x, matrix, targets, weights = inputs(400)
    x, matrix = x.astype(jnp.bfloat16), matrix.astype(jnp.bfloat16)
    nll = cross_entropy(x, matrix, targets, weights, chunk=64)[1]
    exact = plain(x.astype(jnp.float32), matrix.astype(jnp.float32), targets, weights)[1]
    assert nll.dtype == jnp.float32
    np.testing.assert_allclose(nll, exact, rtol=1e-4)


def test_of_few_asked_positions_the_others_cost_nothing():
    """Wherever they stand in their rows, what is asked fits one chunk; nan in all other positions does no harm."""
    x, matrix, targets, weights = inputs()
    asked = jnp.zeros_like(weights).at[:, jnp.array([2, 7, 12])].set(weights[:, :3])
    expected = cross_entropy(x, matrix, targets, asked)[:2]
    spoilt = jnp.where(asked[..., None] > 0, x, jnp.nan)
    np.testing.assert_allclose(cross_entropy(spoilt, matrix, targets, asked, chunk=3)[:2], expected, rtol=1e-6)
