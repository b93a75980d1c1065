"""Rotary position embedding (Su et al. 2021, arXiv 2104.09864) in the half-split layout, with its context extensions."""

import math
from typing import Annotated, Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from pydantic import Field

from mnemax.configs.base import Config, Fraction, PositiveFloat, PositiveInt


class LinearScaling(Config):
    """Positions divided by `factor` (Chen et al. 2023, arXiv 2306.15595)."""

    kind: Literal["linear"] = "linear"
    factor: PositiveFloat


class DynamicNTKScaling(Config):
    """Base stretched so that the slowest frequency spans `length` tokens.

    The published rule follows the running length, so that cached keys disagree with later ones; here the length is fixed, which
    keeps decoding equal to the parallel form.
    """

    kind: Literal["dynamic"] = "dynamic"
    factor: PositiveFloat
    original_length: PositiveInt
    length: PositiveInt


class YarnScaling(Config):
    """NTK-by-parts interpolation with an attention temperature (Peng et al. 2023, arXiv 2309.00071)."""

    kind: Literal["yarn"] = "yarn"
    factor: PositiveFloat
    original_length: PositiveInt
    beta_fast: PositiveFloat = 32.0
    beta_slow: PositiveFloat = 1.0
    attention_factor: PositiveFloat | None = None
    """Multiplies cos and sin; default 0.1 ln(factor) + 1."""
    truncate: bool = True
    """Rounds the ramp's ends to whole dimensions."""


class Llama3Scaling(Config):
    """Llama 3.1's rule: long wavelengths divided by `factor`, short ones kept, a smooth ramp between."""

    kind: Literal["llama3"] = "llama3"
    factor: PositiveFloat
    original_length: PositiveInt
    low_freq_factor: PositiveFloat = 1.0
    high_freq_factor: PositiveFloat = 4.0


class ProportionalScaling(Config):
    """The slowest pairs of the whole head stand still (Gemma-4); `fraction` of the head turns, at the frequencies it has anyway."""

    kind: Literal["proportional"] = "proportional"
    fraction: Fraction


Scaling = Annotated[
    LinearScaling | DynamicNTKScaling | YarnScaling | Llama3Scaling | ProportionalScaling, Field(discriminator="kind")
]


class RotaryConfig(Config):
    """Base, rotated part of the head, and context extension."""

    theta: PositiveFloat = 10_000.0
    fraction: Fraction = 1.0
    """The leading part of each head that is rotated."""
    scaling: Scaling | None = None

    def check_pairs(self, field: str, width: int) -> None:
        """
        Raises:
            ValueError: the rotated part of heads of this width, which the projection calls `field`, is odd.
        """
        if int(width * self.fraction) % 2:
            raise ValueError(f"rope.fraction ({self.fraction}) of {field} ({width}) is odd: rotation needs pairs of dimensions")


def frequencies(config: RotaryConfig, head_width: int) -> tuple[Float[np.ndarray, " half"], float]:
    """Angular frequencies in radians a token, float64, and the factor on cos and sin."""
    width = int(head_width * config.fraction)
    inverse = config.theta ** (-np.arange(0, width, 2, dtype=np.float64) / width)
    match config.scaling:
        case None:
            return inverse, 1.0
        case LinearScaling(factor=s):
            return inverse / s, 1.0
        case DynamicNTKScaling(factor=s, original_length=original, length=length):
            stretch = s * max(length, original) / original - (s - 1)
            return (config.theta * stretch ** (width / (width - 2))) ** (-np.arange(0, width, 2) / width), 1.0
        case YarnScaling() as yarn:
            return _yarn(yarn, inverse, config.theta, width)
        case Llama3Scaling(factor=s, original_length=original, low_freq_factor=low, high_freq_factor=high):
            turns = original * inverse / (2 * math.pi)
            smooth = np.clip((turns - low) / (high - low), 0, 1)
            return (1 - smooth) * inverse / s + smooth * inverse, 1.0
        case ProportionalScaling(fraction=part):
            return np.where(np.arange(width // 2) < int(width * part) // 2, inverse, 0), 1.0


def _yarn(yarn: YarnScaling, inverse: np.ndarray, theta: float, width: int) -> tuple[np.ndarray, float]:
    def dimension(turns: float) -> float:  # the dimension that makes this many turns over the original length
        return width * math.log(yarn.original_length / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = dimension(yarn.beta_fast), dimension(yarn.beta_slow)
    if yarn.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, width - 1)
    ramp = np.clip((np.arange(width // 2) - low) / max(high - low, 0.001), 0, 1)
    factor = yarn.attention_factor
    if factor is None:
        factor = 0.1 * math.log(yarn.factor) + 1.0 if yarn.factor > 1 else 1.0
    return inverse / yarn.factor * ramp + inverse * (1 - ramp), factor


def rotate(
    x: Float[Array, "B T heads H"], positions: Int[Array, "#B T"] | Int[Array, "B T heads"], config: RotaryConfig | None
) -> Float[Array, "B T heads H"]:
    """Rotates pairs (i, i + width/2) of every head by position times frequency; angles in float32. None: NoPE, unchanged.

    Heads may have positions of their own.
    """
    if config is None:
        return x
    inverse, factor = frequencies(config, x.shape[-1])
    half = len(inverse)
    by_head = positions[..., None] if positions.ndim == 2 else positions  # [B, T, 1 or heads]
    angle = by_head[..., None].astype(jnp.float32) * jnp.asarray(inverse, jnp.float32)
    cos, sin = jnp.cos(angle) * factor, jnp.sin(angle) * factor
    a, b, rest = x[..., :half].astype(jnp.float32), x[..., half : 2 * half].astype(jnp.float32), x[..., 2 * half :]
    return jnp.concatenate([(a * cos - b * sin).astype(x.dtype), (b * cos + a * sin).astype(x.dtype), rest], axis=-1)
