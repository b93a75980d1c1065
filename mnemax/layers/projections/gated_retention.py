"""Gated retention's projection, of YOCO's self-decoder (Sun et al. 2024, arXiv 2405.05254, section 3.1).

q, k = RoPE(W x)    g = log sigmoid(W_g x) / 16    y = W_o (silu(W_z x) * normed(o))
"""

from typing import TYPE_CHECKING, Literal, Self, override

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from pydantic import model_validator

from mnemax.configs.base import PositiveInt
from mnemax.layers.linear import linear
from mnemax.layers.memories import Entry, EntrySpec, Place
from mnemax.layers.projections import Part, Projection, ProjectionConfig, gate_spec, leaf
from mnemax.layers.rotary import RotaryConfig, rotate

if TYPE_CHECKING:
    from mnemax.configs.schema import ModelConfig
    from mnemax.layers.param import Init

TEMPERATURE = 16.0  # of the decay: log sigmoid / 16 begins near 0.96 a token


class GatedRetentionConfig(ProjectionConfig):
    """Rotated queries and keys, a data-dependent decay a head, a gated output with a norm a head."""

    gates = frozenset({"log_decay"})
    gated = True

    kind: Literal["gated_retention"] = "gated_retention"
    heads: PositiveInt
    head_width: PositiveInt
    value_width: PositiveInt | None = None
    """Default: head_width."""
    rope: RotaryConfig | None = RotaryConfig()
    """null: NoPE."""

    @model_validator(mode="after")
    def _pairs(self) -> Self:
        if self.rope is not None:
            self.rope.check_pairs("head_width", self.head_width)
        return self

    @property
    def values(self) -> int:
        """Width of a value."""
        return self.head_width if self.value_width is None else self.value_width

    @override
    def build(self, model: "ModelConfig", init: "Init", *, part: Part) -> "GatedRetention":
        return GatedRetention(self, model, init, part)

    @override
    def entry(self, model: "ModelConfig") -> EntrySpec:
        k, v = leaf((self.heads, self.head_width), model), leaf((self.heads, self.values), model)
        return {"k": k, "v": v, "log_decay": gate_spec(self.heads)}

    @override
    def cannot_read(self, writer: ProjectionConfig) -> str | None:
        if not isinstance(writer, GatedRetentionConfig):
            return "gated_retention reads what gated_retention writes"
        mine, theirs = ((c.heads, c.head_width, c.values) for c in (self, writer))
        return None if mine == theirs else f"(heads, head_width, value_width) is {mine} here and {theirs} where it is written"


class GatedRetention(Projection):
    """One decay a head and token; what is read is normed head by head, so its size does not follow the context's length."""

    softcap = None

    def __init__(self, config: GatedRetentionConfig, model: "ModelConfig", init: "Init", part: Part):
        D, N, H, Hv = model.width, config.heads, config.head_width, config.values
        self.part, self.rope, self.scale, self.eps = part, config.rope, H**-0.5, model.norm.eps
        if part != "entries":
            self.w_q = init.matrix((D, N, H), ("embed", "heads", "head"))
            self.w_z = init.matrix((D, N, Hv), ("embed", "heads", "head"))
            self.w_o = init.matrix((N, Hv, D), ("heads", "head", "embed"), contract=2, residual=True)
        if part != "queries":
            self.w_k = init.matrix((D, N, H), ("embed", "heads", "head"))
            self.w_v = init.matrix((D, N, Hv), ("embed", "heads", "head"))
            self.w_g = init.matrix((D, N), ("embed", "heads"))

    @override
    def query(self, x: Float[Array, "B T D"], place: Place) -> Float[Array, "B T N H"]:
        return rotate(_heads(x, self.w_q), place.positions, self.rope)

    @override
    def entry(self, x: Float[Array, "B T D"], place: Place) -> Entry:
        g = linear("btd,dn->btn", x, self.w_g, axes=("batch", "seq", "heads"), dtype=jnp.float32)
        k = rotate(_heads(x, self.w_k), place.positions, self.rope)
        return {"k": k, "v": _heads(x, self.w_v), "log_decay": jax.nn.log_sigmoid(g) / TEMPERATURE}

    @override
    def output(self, out: Float[Array, "B T N Hv"], x: Float[Array, "B T D"], query) -> Float[Array, "B T D"]:
        o = out.astype(jnp.float32)
        o = o * jax.lax.rsqrt(jnp.mean(o * o, axis=-1, keepdims=True) + self.eps)
        gated = jax.nn.silu(_heads(x, self.w_z)) * o.astype(x.dtype)
        return linear("btnh,nhd->btd", gated, self.w_o, axes=("batch", "seq", "residual"))


def _heads(x: jax.Array, weight) -> jax.Array:
    return linear("btd,dnh->btnh", x, weight, axes=("batch", "seq", "heads", "head"))
