"""Gated DeltaNet's projection (Yang et al. 2024, arXiv 2412.06464, section 3.4), with Qwen3-Next's unequal head counts.

q, k = unit(silu(conv(W x)))    v = silu(conv(W_v x))    beta = sigmoid(W_b x)    g = -exp(A) softplus(W_a x + dt)
y = W_o (RMSNorm(o) * silu(W_z x))
"""

import math
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
from mnemax.sharding import use

if TYPE_CHECKING:
    from mnemax.configs.schema import ModelConfig
    from mnemax.layers.param import Init

STEP_RANGE = (math.log(1e-3), math.log(0.1))  # of the logarithm of Mamba's step


class GatedDeltaConfig(ProjectionConfig):
    """Unit-length keys and queries, short convolutions, a decay and a write strength a value head, a gated output."""

    gates = frozenset({"log_decay", "beta"})
    gated = True

    kind: Literal["gated_delta"] = "gated_delta"
    heads: PositiveInt
    """Query and key heads."""
    value_heads: PositiveInt
    """Heads of the state: a multiple of `heads`."""
    head_width: PositiveInt
    """Of a query and a key."""
    value_width: PositiveInt
    taps: PositiveInt = 4
    """Tokens that the short convolutions mix, the present one counted."""
    negative_eigenvalues: bool = False
    """beta in (0, 2) rather than (0, 1): a write may flip what its key held (Grazzi et al. 2024, arXiv 2411.12537)."""

    @model_validator(mode="after")
    def _divides(self) -> Self:
        if self.value_heads % self.heads:
            raise ValueError(f"value_heads ({self.value_heads}) is not divisible by heads ({self.heads})")
        return self

    @override
    def build(self, model: "ModelConfig", init: "Init", *, part: Part) -> "GatedDelta":
        return GatedDelta(self, model, init, part)

    @override
    def entry(self, model: "ModelConfig") -> EntrySpec:
        gates = {"log_decay": gate_spec(self.value_heads), "beta": gate_spec(self.value_heads)}
        return {"k": leaf(self._keys, model), "v": leaf((self.value_heads, self.value_width), model), **gates}

    @override
    def tail(self, model: "ModelConfig", *, part: Part) -> EntrySpec:
        key, value = (leaf((self.taps - 1, *heads), model) for heads in (self._keys, (self.value_heads, self.value_width)))
        q, kv = {"q": key}, {"k": key, "v": value}
        return {"whole": q | kv, "queries": q, "entries": kv}[part]

    @override
    def cannot_read(self, writer: ProjectionConfig) -> str | None:
        if not isinstance(writer, GatedDeltaConfig):
            return "gated_delta reads what gated_delta writes"
        mine, theirs = (c.model_dump(include={"heads", "value_heads", "head_width", "value_width"}) for c in (self, writer))
        return None if mine == theirs else f"heads are {mine} here and {theirs} where it is written"

    @property
    def _keys(self) -> tuple[int, int]:
        return self.heads, self.head_width


class GatedDelta(Projection):
    """Keys and queries have unit length, so that a write of strength 1 replaces exactly what its key held."""

    softcap = None

    def __init__(self, config: GatedDeltaConfig, model: "ModelConfig", init: "Init", part: Part):
        D, K, V, H, Hv = model.width, config.heads, config.value_heads, config.head_width, config.value_width
        self.part = part
        self.scale = H**-0.5
        self.most = 2.0 if config.negative_eigenvalues else 1.0
        if part != "entries":
            self.w_q = init.matrix((D, K, H), ("embed", "kv_heads", "head"))
            self.q_conv = ShortConvolution(config.taps, (K, H), ("kv_heads", "head"), init)
            self.w_z = init.matrix((D, V, Hv), ("embed", "heads", "head"))
            self.norm = RMSNorm((Hv,), ("head",), NormConfig(eps=model.norm.eps), init)
            self.w_o = init.matrix((V, Hv, D), ("heads", "head", "embed"), contract=2, residual=True)
        if part != "queries":
            self.w_k = init.matrix((D, K, H), ("embed", "kv_heads", "head"))
            self.k_conv = ShortConvolution(config.taps, (K, H), ("kv_heads", "head"), init)
            self.w_v = init.matrix((D, V, Hv), ("embed", "heads", "head"))
            self.v_conv = ShortConvolution(config.taps, (V, Hv), ("heads", "head"), init)
            self.w_b = init.matrix((D, V), ("embed", "heads"))
            self.w_a = init.matrix((D, V), ("embed", "heads"))
            self.A_log = init.sampled((V,), ("heads",), 1.0, 16.0, jnp.log)
            self.dt = init.sampled((V,), ("heads",), *STEP_RANGE, step_bias)

    @override
    def __call__(self, x: Float[Array, "B T D"], place: Place, tail: Entry | None) -> tuple[Any, Entry | None, Entry]:
        q, entry, new = None, None, {}

        def mixed(name: str, weight, conv: ShortConvolution, axis: str) -> jax.Array:
            y = linear("btd,dnh->btnh", x, weight, axes=("batch", "seq", axis, "head"))
            y, new[name] = conv(y, place, None if tail is None else tail[name])
            return jax.nn.silu(y)

        if self.part != "entries":
            q = unit(mixed("q", self.w_q, self.q_conv, "kv_heads"))
        if self.part != "queries":
            k, v = unit(mixed("k", self.w_k, self.k_conv, "kv_heads")), mixed("v", self.w_v, self.v_conv, "heads")
            b, a = (linear("btd,dv->btv", x, w, axes=("batch", "seq", "heads"), dtype=jnp.float32) for w in (self.w_b, self.w_a))
            decay = -jnp.exp(use(self.A_log, jnp.float32)) * jax.nn.softplus(a + use(self.dt, jnp.float32))
            entry = {"k": k, "v": v, "log_decay": decay, "beta": self.most * jax.nn.sigmoid(b)}
        return q, entry, new

    @override
    def output(self, out: Float[Array, "B T V Hv"], x: Float[Array, "B T D"], query) -> Float[Array, "B T D"]:
        z = linear("btd,dvh->btvh", x, self.w_z, axes=("batch", "seq", "heads", "head"))
        return linear("btvh,vhd->btd", self.norm(out) * jax.nn.silu(z), self.w_o, axes=("batch", "seq", "residual"))


def step_bias(log_step: jax.Array) -> jax.Array:
    """The bias under which softplus gives this step: softplus^-1(e^u)."""
    step = jnp.exp(log_step)
    return step + jnp.log(-jnp.expm1(-step))


def unit(x: Float[Array, "*batch H"]) -> Float[Array, "*batch H"]:
    """Vectors of length 1, computed in float32; zero stays zero."""
    f = x.astype(jnp.float32)
    return (f * jax.lax.rsqrt(jnp.sum(f * f, axis=-1, keepdims=True) + 1e-6)).astype(x.dtype)
