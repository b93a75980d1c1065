"""Mamba-2's projection (Dao and Gu 2024, arXiv 2405.21060): a state-space layer in the terms of attention.

Its C are queries, its B keys, its x times the step values, and the step times A is the decay:

    x, B, C = silu(conv(W x))    dt = softplus(W_dt x + b)    k = B, q = C, v = dt x, g = -exp(A) dt
    y = W_o RMSNorm((o + D x) * silu(W_z x))
"""

from typing import TYPE_CHECKING, Any, Literal, Self, override

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from pydantic import model_validator

from mnemax.configs.base import PositiveInt
from mnemax.layers.convolution import ShortConvolution
from mnemax.layers.linear import linear
from mnemax.layers.memories import Entry, EntrySpec, Place
from mnemax.layers.norm import NormConfig, RMSNorm
from mnemax.layers.projections import Part, Projection, ProjectionConfig, gate_spec, leaf
from mnemax.layers.projections.gated_delta import STEP_RANGE, step_bias
from mnemax.sharding import use

if TYPE_CHECKING:
    from mnemax.configs.schema import ModelConfig
    from mnemax.layers.param import Init


class Mamba2Config(ProjectionConfig):
    """A state-space layer: `groups` of queries and keys, many value heads, one input-dependent step a head."""

    gates = frozenset({"log_decay"})
    gated = True

    kind: Literal["mamba2"] = "mamba2"
    heads: PositiveInt
    """Value heads, a multiple of `groups`; heads times head_width is commonly twice the model's width."""
    head_width: PositiveInt = 64
    """Of a value."""
    groups: PositiveInt = 1
    """Heads of queries and keys (C and B)."""
    state_width: PositiveInt = 128
    """Of a query and a key: N of the paper."""
    taps: PositiveInt = 4
    """Tokens that the short convolutions mix, the present one counted."""

    @model_validator(mode="after")
    def _divides(self) -> Self:
        if self.heads % self.groups:
            raise ValueError(f"heads ({self.heads}) is not divisible by groups ({self.groups})")
        return self

    @override
    def build(self, model: "ModelConfig", init: "Init", *, part: Part) -> "Mamba2":
        return Mamba2(self, model, init)

    @override
    def entry(self, model: "ModelConfig") -> EntrySpec:
        k, v = leaf((self.groups, self.state_width), model), leaf((self.heads, self.head_width), model)
        return {"k": k, "v": v, "log_decay": gate_spec(self.heads)}

    @override
    def tail(self, model: "ModelConfig", *, part: Part) -> EntrySpec:
        keys, values = (self.taps - 1, self.groups, self.state_width), (self.taps - 1, self.heads, self.head_width)
        return {"x": leaf(values, model), "B": leaf(keys, model), "C": leaf(keys, model)}

    @override
    def cannot_read(self, writer: ProjectionConfig) -> str | None:
        return "mamba2 reads its own state only: what it reads is added to what it writes"


class Mamba2(Projection):
    """The query carries x beside C: the skip D x joins what is read."""

    scale, softcap = 1.0, None

    def __init__(self, config: Mamba2Config, model: "ModelConfig", init: "Init"):
        D, V, P, G, N, W = model.width, config.heads, config.head_width, config.groups, config.state_width, config.taps
        heads, groups = ("heads", "head"), ("kv_heads", "head")
        self.w_z = init.matrix((D, V, P), ("embed", *heads))
        self.w_x = init.matrix((D, V, P), ("embed", *heads))
        self.w_B = init.matrix((D, G, N), ("embed", *groups))
        self.w_C = init.matrix((D, G, N), ("embed", *groups))
        self.w_dt = init.matrix((D, V), ("embed", "heads"))
        self.x_conv = ShortConvolution(W, (V, P), heads, init, bias=True)
        self.B_conv = ShortConvolution(W, (G, N), groups, init, bias=True)
        self.C_conv = ShortConvolution(W, (G, N), groups, init, bias=True)
        self.dt = init.sampled((V,), ("heads",), *STEP_RANGE, step_bias)
        self.A_log = init.sampled((V,), ("heads",), 1.0, 16.0, jnp.log)
        self.D = init.vector((V,), ("heads",), value=1.0)
        self.norm = RMSNorm((V, P), heads, NormConfig(eps=model.norm.eps), init)
        self.w_o = init.matrix((V, P, D), (*heads, "embed"), contract=2, residual=True)

    @override
    def __call__(self, x: Float[Array, "B T D"], place: Place, tail: Entry | None) -> tuple[dict[str, jax.Array], Entry, Entry]:
        new: Entry = {}

        def mixed(name: str, weight, conv: ShortConvolution, axis: str) -> jax.Array:
            y = linear("btd,dnh->btnh", x, weight, axes=("batch", "seq", axis, "head"))
            y, new[name] = conv(y, place, None if tail is None else tail[name])
            return jax.nn.silu(y)

        values, B = mixed("x", self.w_x, self.x_conv, "heads"), mixed("B", self.w_B, self.B_conv, "kv_heads")
        step = linear("btd,dv->btv", x, self.w_dt, axes=("batch", "seq", "heads"), dtype=jnp.float32)
        step = jax.nn.softplus(step + use(self.dt, jnp.float32))
        entry = {
            "k": B,
            "v": values * step[..., None].astype(values.dtype),
            "log_decay": -jnp.exp(use(self.A_log, jnp.float32)) * step,
        }
        return {"C": mixed("C", self.w_C, self.C_conv, "kv_heads"), "x": values}, entry, new

    @override
    def plain(self, query: Any) -> Float[Array, "B T G N"]:
        return query["C"]

    @override
    def output(self, out: Float[Array, "B T V P"], x: Float[Array, "B T D"], query: Any) -> Float[Array, "B T D"]:
        z = linear("btd,dvp->btvp", x, self.w_z, axes=("batch", "seq", "heads", "head"))
        y = out + use(self.D, out.dtype)[:, None] * query["x"]
        return linear("btvp,vpd->btd", self.norm(y * jax.nn.silu(z)), self.w_o, axes=("batch", "seq", "residual"))
