"""DiffQKV (Sigma, arXiv 2501.13629): heads and widths of queries, keys and values are chosen apart.

    q = R W_q h(x)        k[g] = R (W_l) W_k[g] x        v[g] = W_v[g] x

h is x, or makes queries of a wider vector: W_1 x, or silu(W_g x) * W_1 x. Narrow keys are lifted to the width of queries by W_l.
"""

import math
from typing import TYPE_CHECKING, Literal, Self, override

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from pydantic import model_validator

from mnemax.configs.base import PositiveFloat, PositiveInt
from mnemax.kernels.attend import attend
from mnemax.kernels.mask import Mask
from mnemax.layers.linear import linear
from mnemax.layers.memories import Entry, EntrySpec, Place
from mnemax.layers.projections import Part, Projection, ProjectionConfig, leaf
from mnemax.layers.rotary import RotaryConfig, rotate
from mnemax.sharding import shard

if TYPE_CHECKING:
    from mnemax.configs.schema import ModelConfig
    from mnemax.layers.param import Init


class DiffQKVConfig(ProjectionConfig):
    """Fewer heads of keys than of values, narrow keys, wide queries, each by itself."""

    kind: Literal["diffqkv"] = "diffqkv"
    heads: PositiveInt
    key_heads: PositiveInt
    value_heads: PositiveInt
    head_width: PositiveInt
    """Of a query."""
    key_width: PositiveInt | None = None
    """Of a cached key; default: head_width. Narrower ones are lifted to it each time they are read."""
    value_width: PositiveInt | None = None
    """Default: head_width."""
    augmented_query: Literal["none", "linear", "gated"] = "none"
    """Queries from x, from W_1 x, or from silu(W_g x) * W_1 x."""
    query_width: PositiveInt | None = None
    """Of what augmented queries are made from."""
    rope: RotaryConfig | None = RotaryConfig()
    """null: NoPE."""
    scale: PositiveFloat | None = None
    """Multiplies the logits; default head_width^-1/2."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        for field in ("key_heads", "value_heads"):
            if self.heads % getattr(self, field):
                raise ValueError(f"heads ({self.heads}) is not divisible by {field} ({getattr(self, field)})")
        if self.keys > self.head_width:
            raise ValueError(f"key_width ({self.keys}) exceeds head_width ({self.head_width}), to which keys are lifted")
        if (self.augmented_query == "none") != (self.query_width is None):
            raise ValueError(
                f"augmented_query: {self.augmented_query} and query_width ({self.query_width}) go together or not at all"
            )
        if self.rope is not None:
            self.rope.check_pairs("head_width", self.head_width)
        return self

    @property
    def keys(self) -> int:
        """Width of a cached key."""
        return self.head_width if self.key_width is None else self.key_width

    @property
    def values(self) -> int:
        """Width of a value."""
        return self.head_width if self.value_width is None else self.value_width

    @property
    def kv_heads(self) -> int:
        """Heads of what a retention ranks."""
        return self.key_heads

    @property
    def rotated(self) -> Literal["written", "read"]:
        """When keys are rotated: after they are lifted."""
        return "read" if self.keys < self.head_width else "written"

    @override
    def build(self, model: "ModelConfig", init: "Init", *, part: Part) -> "DiffQKV":
        return DiffQKV(self, model, init, part)

    @override
    def entry(self, model: "ModelConfig") -> EntrySpec:
        return {"k": leaf((self.key_heads, self.keys), model), "v": leaf((self.value_heads, self.values), model)}

    @property
    @override
    def by_head(self) -> bool:
        return self.key_heads == self.value_heads

    @property
    @override
    def unpaired(self) -> str | None:
        if not self.by_head:
            return f"key_heads ({self.key_heads}) and value_heads ({self.value_heads}) of projection diffqkv are unlike"
        return "projection diffqkv lifts keys (key_width) when they are read" if self.rotated == "read" else None

    @override
    def cannot_read(self, writer: ProjectionConfig) -> str | None:
        if not isinstance(writer, DiffQKVConfig):
            return f"diffqkv queries cannot read entries of kind '{getattr(writer, 'kind', '?')}'"
        rope = ("rope",) if self.rotated == "written" else ()
        return self.unlike(writer, "key_heads", "value_heads", "keys", "values", "rotated", *rope)

    @override
    def attention_width(self, model: "ModelConfig") -> tuple[int, int]:
        return self.heads * self.head_width, self.heads * self.values


class DiffQKV(Projection):
    """Heads are repeated to a number common to keys and values when they are read, not in the cache."""

    softcap = None

    def __init__(self, config: DiffQKVConfig, model: "ModelConfig", init: "Init", part: Part):
        D, N, H, F = model.width, config.heads, config.head_width, config.query_width
        self.config, self.part = config, part
        self.scale = H**-0.5 if config.scale is None else config.scale
        if part != "entries":
            wide = lambda: None if F is None else init.matrix((D, F), ("embed", "ffn"))  # noqa: E731
            self.w_gate, self.w_up = wide() if config.augmented_query == "gated" else None, wide()
            of_x, of_wide = ("embed", "heads", "head"), ("ffn", "latent", "head")
            self.w_q = init.matrix((D, N, H), of_x) if F is None else init.matrix((F, N, H), of_wide)
            self.w_lift = init.matrix((config.keys, H), ("latent", "head")) if config.rotated == "read" else None
            self.w_o = init.matrix((N, config.values, D), ("heads", "head", "embed"), contract=2, residual=True)
        if part != "queries":
            self.w_k = init.matrix((D, config.key_heads, config.keys), ("embed", "kv_heads", "head"))
            self.w_v = init.matrix((D, config.value_heads, config.values), ("embed", "kv_heads", "head"))

    @override
    def query(self, x: Float[Array, "B T D"], place: Place) -> Float[Array, "B T N H"]:
        if self.w_up is None:
            q = linear("btd,dnh->btnh", x, self.w_q, axes=("batch", "seq", "heads", "head"))
        else:
            h = linear("btd,df->btf", x, self.w_up, axes=("batch", "seq", "ffn"))
            if self.w_gate is not None:
                h = jax.nn.silu(linear("btd,df->btf", x, self.w_gate, axes=("batch", "seq", "ffn"))) * h
            q = linear("btf,fnh->btnh", h, self.w_q, axes=("batch", "seq", "latent", "head"))
            q = shard(q, "batch", "seq", "heads", "head")
        return self._when("written", q, place.positions)

    @override
    def entry(self, x: Float[Array, "B T D"], place: Place) -> Entry:
        k, v = (linear("btd,dnh->btnh", x, w, axes=("batch", "seq", "kv_heads", "head")) for w in (self.w_k, self.w_v))
        return {"k": self._when("written", k, place.positions), "v": v}

    @override
    def attend(self, query: jax.Array, entries: Entry, mask: Mask, implementation: str, **terms):
        k, v = self.expand(entries)
        q, k = self._when("read", query, mask.q_index[None]), self._when("read", k, mask.k_index)
        return attend(q, k, v, mask=mask, scale=self.scale, implementation=implementation, **terms)

    @override
    def expand(self, entries: Entry) -> tuple[Float[Array, "B S K H"], Float[Array, "B S K Hv"]]:
        k, v = entries["k"], entries["v"]
        if self.w_lift is not None:
            k = linear("bske,eh->bskh", k, self.w_lift, axes=("batch", "seq", "kv_heads", "head"))
        K = math.lcm(k.shape[2], v.shape[2])
        return _repeated(k, K), _repeated(v, K)

    @override
    def output(self, out: Float[Array, "B T N Hv"], x: Float[Array, "B T D"], query: jax.Array) -> Float[Array, "B T D"]:
        return linear("btnh,nhd->btd", out, self.w_o, axes=("batch", "seq", "residual"))

    def _when(self, when: str, heads: jax.Array, at: jax.Array) -> jax.Array:
        """Rotated, if this is when that is done."""
        return rotate(heads, at, self.config.rope) if self.config.rotated == when else heads


def _repeated(x: Float[Array, "B S G H"], heads: int) -> Float[Array, "B S K H"]:
    if x.shape[2] == heads:
        return x
    copies = jnp.zeros((heads // x.shape[2], 1), x.dtype)  # beside each head, so that heads stay where they are laid out
    return (x[:, :, :, None] + copies).reshape(*x.shape[:2], heads, x.shape[3])
