"""Keys and values made anew each time they are read, from the layer's cached input (KV-Direct, arXiv 2603.19664).

    entry: x        q = R norm(W_q x)        k_s = R norm(W_k x_s)        v_s = W_v x_s

This is grouped-query attention, weight for weight, with another entry, which is smaller where D < 2 kv_heads head_width.
"""

from typing import TYPE_CHECKING, Literal, Self, override

import jax
from jaxtyping import Array, Float
from pydantic import model_validator

from mnemax.configs.base import PositiveFloat, PositiveInt
from mnemax.kernels.attend import attend
from mnemax.kernels.mask import Mask
from mnemax.layers.linear import linear
from mnemax.layers.memories import Entry, EntrySpec, Place
from mnemax.layers.norm import RMSNorm
from mnemax.layers.projections import Part, Projection, ProjectionConfig, leaf
from mnemax.layers.rotary import RotaryConfig, rotate

if TYPE_CHECKING:
    from mnemax.configs.schema import ModelConfig
    from mnemax.layers.param import Init


class RecomputeConfig(ProjectionConfig):
    """Grouped-query attention that caches its input."""

    kind: Literal["recompute"] = "recompute"
    heads: PositiveInt
    kv_heads: PositiveInt
    head_width: PositiveInt
    rope: RotaryConfig | None = RotaryConfig()
    """null: NoPE."""
    qk_norm: Literal["none", "head"] = "none"
    """RMSNorm on each head of queries and keys before the rotation."""
    scale: PositiveFloat | None = None
    """Multiplies the logits; default head_width^-1/2."""
    softcap: PositiveFloat | None = None
    """c of c tanh(logit / c)."""

    @model_validator(mode="after")
    def _divides(self) -> Self:
        if self.heads % self.kv_heads:
            raise ValueError(f"heads ({self.heads}) is not divisible by kv_heads ({self.kv_heads})")
        if self.rope is not None:
            self.rope.check_pairs("head_width", self.head_width)
        return self

    @override
    def build(self, model: "ModelConfig", init: "Init", *, part: Part) -> "Recompute":
        return Recompute(self, model, init)

    @override
    def entry(self, model: "ModelConfig") -> EntrySpec:
        return {"x": leaf((model.width,), model)}

    @property
    def rotated(self) -> Literal["read"]:
        """When keys are rotated."""
        return "read"

    @property
    @override
    def by_head(self) -> bool:
        return False

    @property
    @override
    def unpaired(self) -> str | None:
        return "projection recompute writes its input, from which keys and values are made when they are read"

    @override
    def cannot_read(self, writer: ProjectionConfig) -> str | None:
        return "recompute makes keys and values of what its own layer cached: it reads its own memory only"

    @override
    def attention_width(self, model: "ModelConfig") -> tuple[int, int]:
        return self.heads * self.head_width, self.heads * self.head_width


class Recompute(Projection):
    """Positions are row indices, since keys are rotated when they are read."""

    def __init__(self, config: RecomputeConfig, model: "ModelConfig", init: "Init"):
        D, N, K, H = model.width, config.heads, config.kv_heads, config.head_width
        self.rope, self.softcap = config.rope, config.softcap
        self.scale = H**-0.5 if config.scale is None else config.scale
        self.w_q = init.matrix((D, N, H), ("embed", "heads", "head"))
        self.w_k, self.w_v = (init.matrix((D, K, H), ("embed", "kv_heads", "head")) for _ in range(2))
        self.w_o = init.matrix((N, H, D), ("heads", "head", "embed"), contract=2, residual=True)
        normed = config.qk_norm == "head"
        self.q_norm, self.k_norm = (RMSNorm((H,), ("head",), model.norm, init) if normed else None for _ in range(2))

    @override
    def query(self, x: Float[Array, "B T D"], place: Place) -> Float[Array, "B T N H"]:
        return _normed(linear("btd,dnh->btnh", x, self.w_q, axes=("batch", "seq", "heads", "head")), self.q_norm)

    @override
    def entry(self, x: Float[Array, "B T D"], place: Place) -> Entry:
        return {"x": x}

    @override
    def attend(self, query: jax.Array, entries: Entry, mask: Mask, implementation: str, **terms):
        k, v = self.expand(entries)
        q, k = rotate(query, mask.q_index[None], self.rope), rotate(k, mask.k_index, self.rope)
        return attend(q, k, v, mask=mask, scale=self.scale, softcap=self.softcap, implementation=implementation, **terms)

    @override
    def expand(self, entries: Entry) -> tuple[Float[Array, "B S K H"], Float[Array, "B S K H"]]:
        """Keys, not yet rotated, and values."""
        x, axes = entries["x"], ("batch", "seq", "kv_heads", "head")
        k, v = (linear("bsd,dkh->bskh", x, w, axes=axes) for w in (self.w_k, self.w_v))
        return _normed(k, self.k_norm), v

    @override
    def output(self, out: Float[Array, "B T N H"], x: Float[Array, "B T D"], query: jax.Array) -> Float[Array, "B T D"]:
        return linear("btnh,nhd->btd", out, self.w_o, axes=("batch", "seq", "residual"))


def _normed(heads: jax.Array, norm: RMSNorm | None) -> jax.Array:
    return heads if norm is None else norm(heads)
