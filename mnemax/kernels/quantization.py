"""Numbers in few bits: a scale, and for integers a zero point, shared by a group; codes packed into bytes.

    integers:  code = clip(round((x - zero) / scale), 0, 2^bits - 1)     x' = zero + scale code
    fp8:       code = e4m3(clip(x / scale, -448, 448))                   x' = scale code

Scales and zero points have the dtype of the numbers, and codes are computed from them as they are stored. The scale is rounded
upwards, so that the largest number of a group is never cut off by the rounding of its own scale.
"""

from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, UInt8

type Format = Literal["int8", "int4", "int2", "fp8"]
type Parameters = dict[str, jax.Array]
"""`scale` and, for integers, `zero` [..., n]: one for each W / n neighbours of numbers [..., W]."""

BITS = {"int8": 8, "int4": 4, "int2": 2, "fp8": 8}
LARGEST = 448.0  # of e4m3


def parameters(low: Float[Array, "*n"], high: Float[Array, "*n"], form: Format, clip: float) -> Parameters:
    """Scale and zero point of groups with numbers in [low, high]; `clip` shortens that range about its middle (fp8: about 0)."""
    dtype = low.dtype
    upwards = 1 + float(jnp.finfo(dtype).eps) / 2
    low, high = jax.lax.stop_gradient((low.astype(jnp.float32), high.astype(jnp.float32)))
    if form == "fp8":
        return {"scale": (jnp.maximum(-low, high) * (clip * upwards / LARGEST)).astype(dtype)}
    cut = (1 - clip) / 2 * (high - low)
    zero = (low + cut).astype(dtype)
    steps = 2 ** BITS[form] - 1
    scale = jnp.maximum(high - cut - zero.astype(jnp.float32), 0.0) * (upwards / steps)
    return {"zero": zero, "scale": scale.astype(dtype)}


def of_neighbours(x: Float[Array, "*n W"], size: int, form: Format, clip: float) -> Parameters:
    """Parameters of each `size` neighbours."""
    grouped = x.reshape(*x.shape[:-1], x.shape[-1] // size, size)
    return parameters(grouped.min(-1), grouped.max(-1), form, clip)


def running_range(x: Float[Array, "B L *n"], size: int) -> tuple[Float[Array, "B T *n"], Float[Array, "B T *n"]]:
    """The least and the largest of each `size` tokens in a row, of which there are T = L - size + 1."""
    low = high = x
    have = 1
    while have < size:
        step = min(have, size - have)
        low = jnp.minimum(low[:, :-step], low[:, step:])
        high = jnp.maximum(high[:, :-step], high[:, step:])
        have += step
    return low, high


def encode(x: Float[Array, "*n W"], given: Parameters, form: Format) -> UInt8[Array, "*n bytes"]:
    """Packed codes."""
    scaled = _scaled(x, given)
    if form == "fp8":
        return jax.lax.bitcast_convert_type(jnp.clip(scaled, -LARGEST, LARGEST).astype(jnp.float8_e4m3fn), jnp.uint8)
    bits = BITS[form]
    codes = jnp.clip(jnp.round(scaled), 0, 2**bits - 1).astype(jnp.uint8)
    return _packed(codes, bits)


def decode(codes: UInt8[Array, "*n bytes"], given: Parameters, form: Format) -> Float[Array, "*n W"]:
    """The numbers that codes stand for, in float32."""
    if form == "fp8":
        return _restored(jax.lax.bitcast_convert_type(codes, jnp.float8_e4m3fn).astype(jnp.float32), given)
    return _restored(_unpacked(codes, BITS[form]).astype(jnp.float32), given)


def quantized(x: Float[Array, "*n W"], given: Parameters, form: Format) -> Float[Array, "*n W"]:
    """`decode` of `encode`, in float32; straight through: the gradient is that of x where x was not cut off, and 0 where it was."""
    scaled = _scaled(jax.lax.stop_gradient(x), given)
    low, high = (-LARGEST, LARGEST) if form == "fp8" else (0.0, 2.0 ** BITS[form] - 1)
    codes = jnp.clip(scaled, low, high)
    codes = codes.astype(jnp.float8_e4m3fn).astype(jnp.float32) if form == "fp8" else jnp.round(codes)
    # Half a step over the ends is rounding, not cutting.
    inside = (scaled >= low - 0.5) & (scaled <= high + 0.5)
    x = x.astype(jnp.float32)
    through = jnp.where(inside, x, jax.lax.stop_gradient(x))
    return _restored(codes, given) + (through - jax.lax.stop_gradient(through))


def hadamard(width: int) -> Float[np.ndarray, "W W"]:
    """Sylvester's matrix over sqrt(width): orthogonal, and its own inverse. The width is a power of 2."""
    matrix = np.ones((1, 1), np.float32)
    while len(matrix) < width:
        matrix = np.kron(np.array([[1, 1], [1, -1]], np.float32), matrix)
    return matrix / np.sqrt(np.float32(width))


def _scaled(x: Float[Array, "*n W"], given: Parameters) -> Float[Array, "*n W"]:
    scale = given["scale"].astype(jnp.float32)
    x = _by_group(x.astype(jnp.float32), scale)
    if "zero" in given:
        x = x - given["zero"].astype(jnp.float32)[..., None]
    return _flat(x / jnp.where(scale > 0, scale, 1.0)[..., None])


def _restored(codes: Float[Array, "*n W"], given: Parameters) -> Float[Array, "*n W"]:
    scale = given["scale"].astype(jnp.float32)
    x = _by_group(codes, scale) * scale[..., None]
    return _flat(x + given["zero"].astype(jnp.float32)[..., None] if "zero" in given else x)


def _by_group(x: jax.Array, scale: jax.Array) -> jax.Array:
    groups = scale.shape[-1]
    return x.reshape(*x.shape[:-1], groups, x.shape[-1] // groups)


def _flat(x: jax.Array) -> jax.Array:
    return x.reshape(*x.shape[:-2], -1)


def _packed(codes: UInt8[Array, "*n W"], bits: int) -> UInt8[Array, "*n bytes"]:
    places = _places(bits)
    return jnp.sum(codes.reshape(*codes.shape[:-1], -1, len(places)) << places, axis=-1, dtype=jnp.uint8)


def _unpacked(codes: UInt8[Array, "*n bytes"], bits: int) -> UInt8[Array, "*n W"]:
    return _flat((codes[..., None] >> _places(bits)) & jnp.uint8(2**bits - 1))


def _places(bits: int) -> UInt8[np.ndarray, " places"]:
    return np.arange(0, 8, bits, dtype=np.uint8)
