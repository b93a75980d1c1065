"""Grouped tied attention (Zadouri et al. 2025, arXiv 2505.21487): the half of a key that is not rotated is half of its value.

u[g] = W_u[g] x        k_r = R W_r x        k[g] = [first of u[g] ; k_r]        v[g] = u[g]
"""

from typing import TYPE_CHECKING, Literal, Self, override

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from pydantic import model_validator

from mnemax.configs.base import PositiveFloat, PositiveInt
from mnemax.layers.linear import linear
from mnemax.layers.memories import Entry, EntrySpec, Place
from mnemax.layers.projections import Part, Projection, ProjectionConfig, leaf
from mnemax.layers.rotary import RotaryConfig, rotate

if TYPE_CHECKING:
    from mnemax.configs.schema import ModelConfig
    from mnemax.layers.param import Init


class GTAConfig(ProjectionConfig):
    """Keys and values tied in one head a group, and one rotated key for all groups."""

    kind: Literal["gta"] = "gta"
    heads: PositiveInt
    kv_heads: PositiveInt
    """Groups."""
    head_width: PositiveInt
    rope_width: PositiveInt | None = None
    """Of the rotated part of a key, which is the same for all groups; default: half of head_width."""
    rope: RotaryConfig = RotaryConfig()
    scale: PositiveFloat | None = None
    """Multiplies the logits; default head_width^-1/2."""
    softcap: PositiveFloat | None = None
    """c of c tanh(logit / c)."""

    @model_validator(mode="after")
    def _divides(self) -> Self:
        if self.heads % self.kv_heads:
            raise ValueError(f"heads ({self.heads}) is not divisible by kv_heads ({self.kv_heads})")
        if self.rotated_width > self.head_width:
            raise ValueError(f"rope_width ({self.rotated_width}) exceeds head_width ({self.head_width})")
        self.rope.check_pairs("rope_width", self.rotated_width)
        return self

    @property
    def rotated_width(self) -> int:
        """Width of the rotated part."""
        return self.head_width // 2 if self.rope_width is None else self.rope_width

    @override
    def build(self, model: "ModelConfig", init: "Init", *, part: Part) -> "GTA":
        return GTA(self, model, init, part)

    @override
    def entry(self, model: "ModelConfig") -> EntrySpec:
        return {"k": leaf((self.kv_heads, self.head_width), model), "k_rope": leaf((1, self.rotated_width), model)}

    @property
    @override
    def by_head(self) -> bool:
        return self.kv_heads == 1

    @property
    @override
    def unpaired(self) -> str | None:
        return "projection gta writes one tied vector a head and a rotated key for all of them"

    @override
    def cannot_read(self, writer: ProjectionConfig) -> str | None:
        if not isinstance(writer, GTAConfig):
            return f"gta queries cannot read entries of kind '{getattr(writer, 'kind', '?')}'"
        for field, mine, theirs in (
            ("kv_heads", self.kv_heads, writer.kv_heads),
            ("head_width", self.head_width, writer.head_width),
            ("rope_width", self.rotated_width, writer.rotated_width),
            ("rope", self.rope, writer.rope),
        ):
            if mine != theirs:
                return f"{field} is {mine} here and {theirs} where it is written"
        return None

    @override
    def attention_width(self, model: "ModelConfig") -> tuple[int, int]:
        return self.heads * self.head_width, self.heads * self.head_width


class GTA(Projection):
    """The leaf `k` is u, tied key and value; `k_rope` is the rotated key of all groups. Of a query, the last part is rotated."""

    def __init__(self, config: GTAConfig, model: "ModelConfig", init: "Init", part: Part):
        D, N, K, H = model.width, config.heads, config.kv_heads, config.head_width
        self.config, self.part, self.softcap = config, part, config.softcap
        self.scale = H**-0.5 if config.scale is None else config.scale
        if part != "entries":
            self.w_q = init.matrix((D, N, H), ("embed", "heads", "head"))
            self.w_o = init.matrix((N, H, D), ("heads", "head", "embed"), contract=2, residual=True)
        if part != "queries":
            self.w_u = init.matrix((D, K, H), ("embed", "kv_heads", "head"))
            self.w_r = init.matrix((D, config.rotated_width), ("embed", "head"))

    @override
    def query(self, x: Float[Array, "B T D"], place: Place) -> Float[Array, "B T N H"]:
        q = linear("btd,dnh->btnh", x, self.w_q, axes=("batch", "seq", "heads", "head"))
        still = self._still
        return jnp.concatenate([q[..., :still], rotate(q[..., still:], place.positions, self.config.rope)], axis=-1)

    @override
    def entry(self, x: Float[Array, "B T D"], place: Place) -> Entry:
        u = linear("btd,dkh->btkh", x, self.w_u, axes=("batch", "seq", "kv_heads", "head"))
        k_r = linear("btd,dr->btr", x, self.w_r, axes=("batch", "seq", "head"))[:, :, None]
        return {"k": u, "k_rope": rotate(k_r, place.positions, self.config.rope)}

    @override
    def expand(self, entries: Entry) -> tuple[Float[Array, "B S K H"], Float[Array, "B S K H"]]:
        u = entries["k"]
        k_r = jnp.zeros_like(u[..., :1]) + entries["k_rope"]  # a head apart, laid out as u is
        return jnp.concatenate([u[..., : self._still], k_r], axis=-1), u

    @override
    def output(self, out: Float[Array, "B T N H"], x: Float[Array, "B T D"], query: jax.Array) -> Float[Array, "B T D"]:
        return linear("btnh,nhd->btd", out, self.w_o, axes=("batch", "seq", "residual"))

    @property
    def _still(self) -> int:
        """Width of the part that is not rotated."""
        return self.config.head_width - self.config.rotated_width
