"""Grouped latent attention (arXiv 2505.21487): MLA with several latents a token, each of which a group of query heads reads.

    c[j] = norm(W_c[j] x)       k[n] = [U_k[n] c[j(n)] ; k_r]       v[n] = U_v[n] c[j(n)]       j(n) = floor(n J / N)

A device that has the query heads of one latent need not hold the others.
"""

from typing import TYPE_CHECKING, Literal, Self, override

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from pydantic import model_validator

from mnemax.configs.base import PositiveInt
from mnemax.kernels.attend import attend
from mnemax.kernels.mask import Mask
from mnemax.layers.linear import linear
from mnemax.layers.memories import Entry, EntrySpec, Place
from mnemax.layers.projections import Part, ProjectionConfig, leaf
from mnemax.layers.projections.mla import MLA, MLAConfig
from mnemax.layers.rotary import rotate
from mnemax.sharding import shard

if TYPE_CHECKING:
    from mnemax.configs.schema import ModelConfig
    from mnemax.layers.param import Init


class GLAConfig(MLAConfig):
    """Several latents a token, and one rotated key."""

    kind: Literal["gla"] = "gla"  # pyrefly: ignore[bad-override]
    latent_heads: PositiveInt = 2
    """J, latents a token, each of `latent_width`."""

    @model_validator(mode="after")
    def _divides(self) -> Self:
        if self.heads % self.latent_heads:
            raise ValueError(f"heads ({self.heads}) is not divisible by latent_heads ({self.latent_heads})")
        return self

    @override
    def build(self, model: "ModelConfig", init: "Init", *, part: Part) -> "GLA":
        return GLA(self, model, init, part)

    @override
    def entry(self, model: "ModelConfig") -> EntrySpec:
        return {"k": leaf((self.latent_heads, self.latent_width), model), "k_rope": leaf((1, self.rope_width), model)}

    @property
    @override
    def kv_heads(self) -> int:
        return self.latent_heads

    @property
    @override
    def by_head(self) -> bool:
        return False  # all latents share one rotated key

    @override
    def cannot_read(self, writer: ProjectionConfig) -> str | None:
        reason = self.unlike(writer, "latent_heads") if isinstance(writer, GLAConfig) else None
        return reason or super().cannot_read(writer)


class GLA(MLA):
    """As MLA, the latents [B, S, J, R] apart from the rotated key [B, S, 1, Hr]."""

    def __init__(self, config: GLAConfig, model: "ModelConfig", init: "Init", part: Part):
        super().__init__(config, model, init, part)
        self.latent_heads = config.latent_heads
        if part != "queries":
            self.w_c = init.matrix((model.width, config.latent_heads, config.latent_width), ("embed", "kv_heads", "latent"))

    @override
    def entry(self, x: Float[Array, "B T D"], place: Place) -> Entry:
        c = self.c_norm(linear("btd,djr->btjr", x, self.w_c, axes=("batch", "seq", "kv_heads", "latent")))
        k_r = linear("btd,dh->bth", x, self.w_kr, axes=("batch", "seq", "head"))[:, :, None]
        return {"k": c, "k_rope": rotate(k_r, place.positions, self.config.rope)}

    @override
    def expand(self, entries: Entry) -> tuple[Float[Array, "B S N H"], Float[Array, "B S N Hv"]]:
        N, (B, S, J, R) = self.config.heads, entries["k"].shape
        c = jnp.broadcast_to(entries["k"][:, :, :, None], (B, S, J, N // J, R)).reshape(B, S, N, R)
        c = shard(c, "batch", "seq", "heads", "latent")
        k_n = linear("bsnr,rnh->bsnh", c, self.u_k, axes=("batch", "seq", "heads", "head"))
        v = linear("bsnr,rnh->bsnh", c, self.u_v, axes=("batch", "seq", "heads", "head"))
        return jnp.concatenate([k_n, for_all(entries["k_rope"], N, "heads")], axis=-1), v

    @override
    def absorbed(self, query: jax.Array, entries: Entry, mask: Mask, implementation: str, **terms):
        q_n, q_r = self._parts(query)
        q = jnp.concatenate([linear("btnh,rnh->btnr", q_n, self.u_k, axes=("batch", "seq", "heads", "latent")), q_r], axis=-1)
        k = jnp.concatenate([entries["k"], for_all(entries["k_rope"], self.latent_heads, "kv_heads")], axis=-1)
        out, lse = attend(q, k, entries["k"], mask=mask, scale=self.scale, implementation=implementation, **terms)
        return linear("btnr,rnh->btnh", out, self.u_v, axes=("batch", "seq", "heads", "head")), lse


def for_all(k_r: Float[Array, "B S 1 Hr"], heads: int, axis: str) -> Float[Array, "B S heads Hr"]:
    """The one rotated key, for every head."""
    return shard(jnp.broadcast_to(k_r, (*k_r.shape[:2], heads, k_r.shape[-1])), "batch", "seq", axis, "head")
