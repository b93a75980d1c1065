"""Tensor-parallel latent attention (arXiv 2508.15881): MLA whose latent lies in slices, each with a softmax of its own.

    c = norm(W_c x) = [c_1 .. c_G]          p_i[n] = softmax_s(scale ((U_k,i[n]^T q_n[n]) . c_i,s + q_r[n] . k_r,s))
    o[n] = sum_i U_v,i[n] sum_s p_i,s[n] c_i,s

Every head reads every slice: multi-query attention with G key heads, the latent's slices, and G N query heads. Weights are MLA's.
"""

from typing import TYPE_CHECKING, Literal, Self, override

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from pydantic import model_validator

from mnemax.configs.base import PositiveInt
from mnemax.kernels.mask import Mask
from mnemax.layers.linear import linear
from mnemax.layers.memories import Entry, EntrySpec, Place
from mnemax.layers.projections import Part, Projection, ProjectionConfig, leaf
from mnemax.layers.projections.gla import for_all
from mnemax.layers.projections.mla import MLA, MLAConfig
from mnemax.sharding import shard

if TYPE_CHECKING:
    from mnemax.configs.schema import ModelConfig
    from mnemax.layers.param import Init


class TPLAConfig(MLAConfig):
    """MLA with the latent in slices."""

    kind: Literal["tpla"] = "tpla"  # pyrefly: ignore[bad-override]
    slices: PositiveInt = 2
    """G, of the latent; each device of a `tensor` axis of so many has one."""

    @model_validator(mode="after")
    def _divides(self) -> Self:
        if self.latent_width % self.slices:
            raise ValueError(f"latent_width ({self.latent_width}) is not divisible by slices ({self.slices})")
        return self

    @property
    @override
    def query_heads(self) -> int:
        return self.slices * self.heads

    @override
    def build(self, model: "ModelConfig", init: "Init", *, part: Part) -> "TPLA":
        return TPLA(self, model, init, part)

    @override
    def entry(self, model: "ModelConfig") -> EntrySpec:
        return {"k": leaf((self.slices, self.latent_width // self.slices), model), "k_rope": leaf((1, self.rope_width), model)}

    @property
    @override
    def kv_heads(self) -> int:
        return self.slices

    @property
    @override
    def by_head(self) -> bool:
        return False  # all slices share one rotated key

    @override
    def cannot_read(self, writer: ProjectionConfig) -> str | None:
        reason = self.unlike(writer, "slices") if isinstance(writer, TPLAConfig) else None
        return reason or super().cannot_read(writer)

    @override
    def attention_width(self, model: "ModelConfig") -> tuple[int, int]:
        return self.heads * (self.latent_width + self.slices * self.rope_width), self.heads * self.latent_width


class TPLA(MLA):
    """Queries [B, T, G N, R / G + Hr] are absorbed always; head i N + n is head n against slice i."""

    def __init__(self, config: TPLAConfig, model: "ModelConfig", init: "Init", part: Part):
        super().__init__(config, model, init, part)
        self.slices = config.slices

    @override
    def query(self, x: Float[Array, "B T D"], place: Place) -> Float[Array, "B T N H"]:
        q_n, q_r = self._parts(super().query(x, place))
        q_c = linear("btnh,rnh->btnr", q_n, self.u_k, axes=("batch", "seq", "heads", "latent"))
        q_c = jnp.concatenate(jnp.split(q_c, self.slices, axis=-1), axis=2)
        q = jnp.concatenate([q_c, jnp.concatenate([q_r] * self.slices, axis=2)], axis=-1)
        return shard(q, "batch", "seq", "heads", "latent")

    @override
    def entry(self, x: Float[Array, "B T D"], place: Place) -> Entry:
        c, k_r = jnp.split(super().entry(x, place)["k"], [self.config.latent_width], axis=-1)
        return {"k": shard(c.reshape(*c.shape[:2], self.slices, -1), "batch", "seq", "kv_heads", "latent"), "k_rope": k_r}

    @override
    def expand(self, entries: Entry) -> tuple[Float[Array, "B S G H"], Float[Array, "B S G Hv"]]:
        return jnp.concatenate([entries["k"], for_all(entries["k_rope"], self.slices, "kv_heads")], axis=-1), entries["k"]

    @override
    def attend(self, query: jax.Array, entries: Entry, mask: Mask, implementation: str, **terms):
        return Projection.attend(self, query, entries, mask, implementation, **terms)

    @override
    def output(self, out: Float[Array, "B T N Hv"], x: Float[Array, "B T D"], query) -> Float[Array, "B T D"]:
        out = shard(out, "batch", "seq", "slots", "latent")  # a slice's heads may be fewer than the devices that share all
        c = shard(jnp.concatenate(jnp.split(out, self.slices, axis=2), axis=-1), "batch", "seq", "heads", "latent")
        return super().output(linear("btnr,rnh->btnh", c, self.u_v, axes=("batch", "seq", "heads", "head")), x, query)
