"""Slots that sum keys and values: which slot a chunk's tokens go to, and the sums with them (key-value means, arXiv 2605.09877).

M slots a row and head, of which the first `held` hold something. Everything is float32, products included: a rounded likeness sends
a token elsewhere.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


def choose(
    keys: Float[Array, "B C K H"],
    own: Float[Array, "B C K H"],
    slots: Float[Array, "B M K H"],
    held: Int[Array, " B"],
    added: Int[Array, " B"],
    sinks: int,
) -> tuple[Int[Array, "B C K"], Bool[Array, "B C K"]]:
    """The slot of each of C tokens, and whether the token begins it.

    The `added` tokens that are least like any slot begin slots of their own, in the order of time. Every other token goes to the
    slot that it is most like, those just begun among them and the first `sinks` not. Of equals the earlier is taken.

    Args:
        keys: of the tokens.
        own: what they would be compared with as slots of their own.
        slots: what they are compared with.
    """
    M = slots.shape[1]
    likeness = jnp.where(first(held, M)[:, None, None], _product("bckh,bmkh->bckm", keys, slots), -jnp.inf)
    novelty_rank = jnp.argsort(jnp.argsort(likeness.max(axis=-1), axis=1), axis=1)
    new = novelty_rank < added[:, None, None]
    number = held[:, None, None] + jnp.cumsum(new, axis=1) - 1
    begun = jnp.where(jnp.swapaxes(new, 1, 2)[:, None], _product("bckh,bdkh->bckd", keys, own), -jnp.inf)
    open_slots = jnp.where(jnp.arange(M) < sinks, -jnp.inf, likeness)
    best = jnp.argmax(jnp.concatenate([open_slots, begun], axis=-1), axis=-1)
    joined = jnp.where(best < M, best, jnp.take_along_axis(number, jnp.maximum(best - M, 0), axis=1))
    return jnp.where(new, number, joined), new


def add(
    sums: dict[str, Float[Array, "B M ..."]],
    k: Float[Array, "B C K H"],
    v: Float[Array, "B C K Hv"],
    slot: Int[Array, "B C K"],
    new: Bool[Array, "B C K"],
    held: Int[Array, " B"],
) -> dict[str, Float[Array, "B M ..."]]:
    """The sums of keys "k" and of values "v" with these, and the "radius": the length of the value that began a slot.

    What lies beyond the first `held` slots counts as nothing. A token whose slot is -1 goes nowhere.
    """
    kept = first(held, sums["k"].shape[1])
    into = jax.nn.one_hot(slot, kept.shape[1], dtype=jnp.float32)
    return {
        "k": keep(kept, sums["k"]) + _product("bckm,bckh->bmkh", into, k),
        "v": keep(kept, sums["v"]) + _product("bckm,bckh->bmkh", into, v),
        "radius": keep(kept, sums["radius"]) + _product("bckm,bck->bmk", into, jnp.where(new, length(v), 0)),
    }


def first(held: Int[Array, " B"], slots: int) -> Bool[Array, "B M"]:
    """Which slots are among the first `held`."""
    return jnp.arange(slots) < held[:, None]


def keep(kept: Bool[Array, "B M"], x: Float[Array, "B M ..."]) -> Float[Array, "B M ..."]:
    """Zeros, whatever was there, in slots that are not kept."""
    return jnp.where(kept.reshape(*kept.shape, *(1,) * (x.ndim - 2)), x, 0)


def length(v: Float[Array, "*batch H"]) -> Float[Array, "*batch"]:
    """Euclidean, with a gradient of 0 at 0."""
    return jnp.sqrt(jnp.maximum(jnp.sum(v * v, axis=-1), 1e-24))


def _product(equation: str, a: Array, b: Array) -> Array:
    return jnp.einsum(equation, a, b, precision=jax.lax.Precision.HIGHEST)
