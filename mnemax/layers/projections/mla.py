"""Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1): one latent and one rotated key a token, for all heads.

c = norm(W_c x)       k_r = R W_kr x                       (cached: d_c + d_r numbers)
k[n] = [U_k[n] c ; k_r]       v[n] = U_v[n] c              (expanded: multi-head attention)
q[n] . k[n] = (U_k[n]^T q_n[n]) . c + q_r[n] . k_r         (absorbed: multi-query attention over the cache as it is)
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Literal, Self, override

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Shaped
from pydantic import model_validator

from mnemax.configs.base import PositiveFloat, PositiveInt
from mnemax.kernels.attend import attend
from mnemax.kernels.mask import Mask
from mnemax.layers.linear import linear
from mnemax.layers.memories import Entry, EntrySpec, Place
from mnemax.layers.norm import RMSNorm
from mnemax.layers.projections import Part, Projection, ProjectionConfig, leaf
from mnemax.layers.rotary import RotaryConfig, rotate
from mnemax.sharding import shard

if TYPE_CHECKING:
    from mnemax.configs.schema import ModelConfig
    from mnemax.layers.param import Init


class MLAConfig(ProjectionConfig):
    """Keys and values that are made from one cached latent."""

    kind: Literal["mla"] = "mla"
    heads: PositiveInt
    latent_width: PositiveInt
    """d_c, of the cached latent (DeepSeek's kv_lora_rank)."""
    query_latent: PositiveInt | None = None
    """Width of the latent that queries are made from (q_lora_rank); null: queries are made from x."""
    nope_width: PositiveInt
    """d_n, of the part of a head that is not rotated (qk_nope_head_dim)."""
    rope_width: PositiveInt
    """d_r, of the rotated part, whose key all heads share (qk_rope_head_dim)."""
    value_width: PositiveInt
    """d_v, of a head's value (v_head_dim)."""
    rope: RotaryConfig = RotaryConfig()
    scale: PositiveFloat | None = None
    """Multiplies the logits; default (nope_width + rope_width)^-1/2."""

    @model_validator(mode="after")
    def _rotates_pairs(self) -> Self:
        self.rope.check_pairs("rope_width", self.rope_width)
        return self

    @override
    def build(self, model: "ModelConfig", init: "Init", *, part: Part) -> "MLA":
        return MLA(self, model, init, part)

    @override
    def entry(self, model: "ModelConfig") -> EntrySpec:
        return {"k": leaf((1, self.latent_width + self.rope_width), model)}

    @override
    def cannot_read(self, writer: ProjectionConfig) -> str | None:
        if not isinstance(writer, MLAConfig) or type(writer) is not type(self):
            return f"{self.kind} queries cannot read entries of kind '{getattr(writer, 'kind', '?')}'"
        return self.unlike(writer, "latent_width", "rope_width", "rope")

    @override
    def attention_width(self, model: "ModelConfig") -> tuple[int, int]:
        return self.heads * (self.nope_width + self.rope_width), self.heads * self.value_width

    @property
    @override
    def unpaired(self) -> str | None:
        return f"projection {self.kind} caches latents, from which keys and values are made when they are read"

    @property
    def kv_heads(self) -> int:
        """Latents of a token."""
        return 1


class MLA(Projection):
    """A cached key is [c ; k_r], and its value is c. Queries are [q_n ; q_r], the rotated part last."""

    def __init__(self, config: MLAConfig, model: "ModelConfig", init: "Init", part: Part):
        D, N, Hn, Hr, Hv, R = (
            model.width, config.heads, config.nope_width, config.rope_width, config.value_width, config.latent_width,
        )  # fmt: skip
        self.config = config
        self.part = part
        self.scale = (Hn + Hr) ** -0.5 if config.scale is None else config.scale
        self.softcap = None
        Rq = config.query_latent
        if part != "entries":
            self.w_dq = None if Rq is None else init.matrix((D, Rq), ("embed", "latent"))
            self.q_norm = None if Rq is None else RMSNorm((Rq,), ("latent",), model.norm, init)
            self.w_q = init.matrix((D if Rq is None else Rq, N, Hn + Hr), ("embed" if Rq is None else "latent", "heads", "head"))
            self.u_k = init.matrix((R, N, Hn), ("latent", "heads", "head"))
            self.u_v = init.matrix((R, N, Hv), ("latent", "heads", "head"))
            self.w_o = init.matrix((N, Hv, D), ("heads", "head", "embed"), contract=2, residual=True)
        if part != "queries":
            self.w_c = init.matrix((D, R), ("embed", "latent"))
            self.c_norm = RMSNorm((R,), ("latent",), model.norm, init)
            self.w_kr = init.matrix((D, Hr), ("embed", "head"))

    @override
    def query(self, x: Float[Array, "B T D"], place: Place) -> Float[Array, "B T N H"]:
        if self.w_dq is not None:
            assert self.q_norm is not None  # they come together
            x = self.q_norm(linear("btd,dr->btr", x, self.w_dq, axes=("batch", "seq", "latent")))
        q_n, q_r = self._parts(linear("btd,dnh->btnh", x, self.w_q, axes=("batch", "seq", "heads", "head")))
        return jnp.concatenate([q_n, rotate(q_r, place.positions, self.config.rope)], axis=-1)

    @override
    def entry(self, x: Float[Array, "B T D"], place: Place) -> Entry:
        c = self.c_norm(linear("btd,dr->btr", x, self.w_c, axes=("batch", "seq", "latent")))[:, :, None]
        k_r = linear("btd,dh->bth", x, self.w_kr, axes=("batch", "seq", "head"))[:, :, None]
        return {"k": jnp.concatenate([c, rotate(k_r, place.positions, self.config.rope)], axis=-1)}

    @override
    def expand(self, entries: Entry) -> tuple[Float[Array, "B S N H"], Float[Array, "B S N Hv"]]:
        c, k_r = entries["k"][:, :, 0, : self.config.latent_width], entries["k"][..., self.config.latent_width :]
        k_n = linear("bsr,rnh->bsnh", c, self.u_k, axes=("batch", "seq", "heads", "head"))
        v = linear("bsr,rnh->bsnh", c, self.u_v, axes=("batch", "seq", "heads", "head"))
        k_r = shard(jnp.broadcast_to(k_r, (*k_n.shape[:3], k_r.shape[-1])), "batch", "seq", "heads", "head")
        return jnp.concatenate([k_n, k_r], axis=-1), v

    @override
    def attend(self, query: jax.Array, entries: Entry, mask: Mask, implementation: str, **terms):
        if self._absorbs(query.shape[1], entries["k"].shape[1]):
            return self.absorbed(query, entries, mask, implementation, **terms)
        terms = {name: None if term is None else self._by_query_head(term) for name, term in terms.items()}
        if mask.k_index.ndim == 3:
            mask = replace(mask, k_index=self._by_query_head(mask.k_index))
        return super().attend(query, entries, mask, implementation, **terms)

    def absorbed(
        self, query: Float[Array, "B T N H"], entries: Entry, mask: Mask, implementation: str, **terms
    ) -> tuple[Float[Array, "B T N Hv"], Float[Array, "B T N"]]:
        """Multi-query attention over what is cached: only the latents are read. Arguments and result as `attend`."""
        q_n, q_r = self._parts(query)
        q_c = linear("btnh,rnh->btnr", q_n, self.u_k, axes=("batch", "seq", "heads", "latent"))
        k, c = entries["k"], entries["k"][..., : self.config.latent_width]
        q = jnp.concatenate([q_c, q_r], axis=-1)
        out, lse = attend(q, k, c, mask=mask, scale=self.scale, implementation=implementation, **terms)
        return linear("btnr,rnh->btnh", out, self.u_v, axes=("batch", "seq", "heads", "head")), lse

    @override
    def output(self, out: Float[Array, "B T N Hv"], x: Float[Array, "B T D"], query) -> Float[Array, "B T D"]:
        return linear("btnh,nhd->btd", out, self.w_o, axes=("batch", "seq", "residual"))

    def _parts(self, q: Float[Array, "B T N H"]) -> tuple[Float[Array, "B T N Hn"], Float[Array, "B T N Hr"]]:
        return q[..., : self.config.nope_width], q[..., self.config.nope_width :]

    def _absorbs(self, T: int, S: int) -> bool:
        """Whether T queries over S entries take fewer multiply-adds a head absorbed than expanded."""
        Hn, Hr, Hv, R = self.config.nope_width, self.config.rope_width, self.config.value_width, self.config.latent_width
        up = R * (Hn + Hv)
        return T * S * (R + Hr + R) + T * up < T * S * (Hn + Hr + Hv) + S * up

    def _by_query_head(self, term: Shaped[Array, "B S 1"]) -> Shaped[Array, "B S N"]:
        return jnp.repeat(term, self.config.heads, axis=2)
