"""Rotation against complex numbers, and the frequency rules against their papers' definitions, a dimension at a time."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mnemax.layers.rotary import (
    DynamicNTKScaling,
    LinearScaling,
    Llama3Scaling,
    ProportionalScaling,
    RotaryConfig,
    YarnScaling,
    frequencies,
    rotate,
)


@pytest.mark.parametrize("fraction", [1.0, 0.5, 0.25])
def test_rotation_is_complex_multiplication(fraction):
    rng = np.random.default_rng(0)
    x, positions = rng.standard_normal((2, 7, 3, 16)), rng.integers(0, 500, (2, 7))
    width = int(16 * fraction)
    z = x[..., : width // 2] + 1j * x[..., width // 2 : width]
    for pair in range(width // 2):
        z[..., pair] *= np.exp(1j * positions[..., None] * 500.0 ** (-2 * pair / width))
    expected = np.concatenate([z.real, z.imag, x[..., width:]], axis=-1)
    config = RotaryConfig(theta=500.0, fraction=fraction)
    found = rotate(jnp.asarray(x, jnp.float32), jnp.asarray(positions, jnp.int32), config)
    np.testing.assert_allclose(found, expected, atol=2e-4)


def test_logits_depend_on_distance_alone():
    q, k = jax.random.normal(jax.random.key(0), (2, 1, 1, 1, 32))

    def logit(i, j):
        a, b = (rotate(x, jnp.full((1, 1), at, jnp.int32), RotaryConfig()) for x, at in ((q, i), (k, j)))
        return float(jnp.sum(a * b))

    assert logit(9, 4) == pytest.approx(logit(105, 100), abs=1e-4)
    assert logit(9, 4) != pytest.approx(logit(9, 5), abs=1e-2)


def test_no_rotation_is_the_identity():
    x = jax.random.normal(jax.random.key(0), (1, 4, 2, 8))
    assert rotate(x, jnp.arange(4)[None], None) is x


def test_linear_scaling_stretches_positions():
    plain, _ = frequencies(RotaryConfig(), 64)
    scaled, factor = frequencies(RotaryConfig(scaling=LinearScaling(factor=8.0)), 64)
    np.testing.assert_allclose(8 * scaled, plain)
    assert factor == 1


def test_dynamic_ntk_keeps_the_fastest_and_stretches_the_slowest_by_the_factor():
    """At `length` = `factor` original lengths NTK-aware scaling divides the slowest frequency by that stretch, the fastest by 1."""
    scaling = DynamicNTKScaling(factor=1.0, original_length=100, length=400)
    plain, _ = frequencies(RotaryConfig(), 64)
    scaled, _ = frequencies(RotaryConfig(scaling=scaling), 64)
    assert scaled[0] == plain[0]
    assert scaled[-1] == pytest.approx(plain[-1] / 4)


def test_yarn_by_parts():
    """arXiv 2309.00071, equations 18-23: by the turns r that a dimension makes over the original length, gamma blends."""
    width, theta, length, s, alpha, beta = 64, 10_000.0, 2048, 16.0, 1.0, 32.0
    yarn = YarnScaling(factor=s, original_length=length, beta_fast=beta, beta_slow=alpha, truncate=False)
    found, factor = frequencies(RotaryConfig(theta=theta, scaling=yarn), width)
    assert factor == pytest.approx(0.1 * math.log(s) + 1)
    for i, frequency in enumerate(found):
        plain = theta ** (-2 * i / width)
        turns = length * plain / (2 * math.pi)
        if turns > beta:
            assert frequency == pytest.approx(plain)
        elif turns < alpha:
            assert frequency == pytest.approx(plain / s)
        else:  # the published code's ramp is linear in the dimension, between the dimensions of beta and alpha turns
            first, last = (width * math.log(length / (2 * math.pi * r)) / (2 * math.log(theta)) for r in (beta, alpha))
            gamma = 1 - (i - first) / (last - first)
            assert frequency == pytest.approx((1 - gamma) * plain / s + gamma * plain)


def test_yarn_ends_rounded_to_dimensions():
    exact, rounded = (
        frequencies(RotaryConfig(scaling=YarnScaling(factor=4.0, original_length=2048, truncate=t)), 64)[0] for t in (False, True)
    )
    plain, _ = frequencies(RotaryConfig(), 64)
    first, last = (64 * math.log(2048 / (2 * math.pi * r)) / (2 * math.log(1e4)) for r in (32, 1))
    np.testing.assert_allclose(rounded[: math.floor(first) + 1], plain[: math.floor(first) + 1])
    np.testing.assert_allclose(rounded[math.ceil(last) :], plain[math.ceil(last) :] / 4)
    assert not np.allclose(exact, rounded)


def test_llama3_by_wavelength():
    """The rule as released with Llama 3.1: by wavelength against the original length over the two factors."""
    scaling = Llama3Scaling(factor=8.0, original_length=8192, low_freq_factor=1.0, high_freq_factor=4.0)
    found, factor = frequencies(RotaryConfig(theta=500_000.0, scaling=scaling), 128)
    assert factor == 1
    kinds = set()
    for i, frequency in enumerate(found):
        plain = 500_000.0 ** (-2 * i / 128)
        wavelength = 2 * math.pi / plain
        if wavelength < 8192 / 4:
            expected, kind = plain, "short"
        elif wavelength > 8192 / 1:
            expected, kind = plain / 8, "long"
        else:
            smooth = (8192 / wavelength - 1) / (4 - 1)
            expected, kind = (1 - smooth) * plain / 8 + smooth * plain, "between"
        kinds.add(kind)
        assert frequency == pytest.approx(expected)
    assert kinds == {"short", "long", "between"}


def test_proportional_leaves_the_slowest_pairs_of_the_whole_head():
    """Pairs (i, i + 8) of 16: a quarter of the head are the pairs 0 and 1, which turn as they would if all did."""
    rng = np.random.default_rng(0)
    x, positions = rng.standard_normal((2, 7, 3, 16)), rng.integers(0, 500, (2, 7))
    z = x[..., :8] + 1j * x[..., 8:]
    for pair in (0, 1):
        z[..., pair] *= np.exp(1j * positions[..., None] * 500.0 ** (-2 * pair / 16))
    config = RotaryConfig(theta=500.0, scaling=ProportionalScaling(fraction=0.25))
    found = rotate(jnp.asarray(x, jnp.float32), jnp.asarray(positions, jnp.int32), config)
    np.testing.assert_allclose(found, np.concatenate([z.real, z.imag], axis=-1), atol=2e-4)


def test_attention_factor_multiplies_both_vectors():
    yarn = YarnScaling(factor=4.0, original_length=64, attention_factor=1.5)
    x = jax.random.normal(jax.random.key(0), (1, 5, 2, 8))
    norms = jnp.linalg.norm(rotate(x, jnp.arange(5)[None], RotaryConfig(scaling=yarn)), axis=-1)
    np.testing.assert_allclose(norms, 1.5 * jnp.linalg.norm(x, axis=-1), rtol=1e-5)
