"""Attention over several sets of keys is one attention: outputs weighted by what each set holds of the softmax's sum."""

import functools

import jax.numpy as jnp
from jaxtyping import Array, Float


def merge(
    *parts: tuple[Float[Array, "B T N Hv"], Float[Array, "B T N"]],
) -> tuple[Float[Array, "B T N Hv"], Float[Array, "B T N"]]:
    """Output and log-sum-exp over the union of disjoint sets of keys, each given as `attend` returns it.

    A query that sees no key in any set gives 0 and -inf, as in `attend`.
    """
    return functools.reduce(_merge, parts)


def _merge(a, b):
    (out_a, lse_a), (out_b, lse_b) = a, b
    # Where neither sees a key both are -inf, and so is their sum; the share is of something finite, for the gradient's sake.
    some = jnp.isfinite(lse_a) | jnp.isfinite(lse_b)
    lse = jnp.where(some, jnp.logaddexp(jnp.where(some, lse_a, 0.0), jnp.where(some, lse_b, 0.0)), -jnp.inf)
    share = jnp.where(some, jnp.exp(lse_b - jnp.where(some, lse, 0.0)), 0.0)[..., None]
    out = out_a.astype(jnp.float32) * (1 - share) + out_b.astype(jnp.float32) * share
    return out.astype(out_a.dtype), lse
