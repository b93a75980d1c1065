"""One matrix for two or all of queries, keys and values (arXiv 2606.04032, with RoPE and relative positions as we read it).

    kv:  v = k = W_k x, q = W_q x        qk:  q = k = W_k x, v = W_v x        qkv:  q = k = v = W_k x

An entry holds the key as it was projected. It is normed and rotated, by row index, each time it is read, so that the value may be
the same vector, neither normed nor rotated.
"""

from typing import TYPE_CHECKING, Any, Literal, Self, override

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int
from pydantic import model_validator

from mnemax.configs.base import PositiveFloat, PositiveInt
from mnemax.kernels.attend import attend
from mnemax.kernels.mask import Mask
from mnemax.layers.linear import linear
from mnemax.layers.memories import Entry, EntrySpec, Place
from mnemax.layers.norm import RMSNorm, unit_rms
from mnemax.layers.projections import Part, Projection, ProjectionConfig, leaf
from mnemax.layers.rotary import RotaryConfig, rotate
from mnemax.sharding import use

if TYPE_CHECKING:
    from mnemax.configs.schema import ModelConfig
    from mnemax.layers.param import Init

WAVES = RotaryConfig()  # whose frequencies those of the relative term are


class SharedConfig(ProjectionConfig):
    """One matrix makes two or all of queries, keys and values."""

    kind: Literal["shared"] = "shared"
    share: Literal["kv", "qk", "qkv"]
    """What one matrix makes. kv and qkv cache keys alone."""
    heads: PositiveInt
    kv_heads: PositiveInt
    """With qk and qkv as many as `heads`."""
    head_width: PositiveInt
    rope: RotaryConfig | None = RotaryConfig()
    """null: NoPE."""
    relative: PositiveInt | None = None
    """Frequencies of a learned term in the distance i - j, which is added to the logits; null: none."""
    qk_norm: Literal["none", "head"] = "none"
    """RMSNorm on each head of queries and keys before the rotation; never on values."""
    value_norm: bool = False
    """RMSNorm without a scale on each head's value, when it is read (Gemma-4)."""
    scale: PositiveFloat | None = None
    """Multiplies the logits but for the relative term; default head_width^-1/2."""
    softcap: PositiveFloat | None = None
    """c of c tanh(logit / c), of the whole logit."""

    @model_validator(mode="after")
    def _divides(self) -> Self:
        if self.share != "kv" and self.heads != self.kv_heads:
            raise ValueError(
                f"share: {self.share} makes queries of the keys: kv_heads ({self.kv_heads}) must equal heads ({self.heads})"
            )
        if self.heads % self.kv_heads:
            raise ValueError(f"heads ({self.heads}) is not divisible by kv_heads ({self.kv_heads})")
        if self.rope is not None:
            self.rope.check_pairs("head_width", self.head_width)
        return self

    @model_validator(mode="after")
    def _knows_before_from_after(self) -> Self:
        if self.share != "kv" and self.rope is not None and self.relative is None:
            raise ValueError(
                f"rope leaves the logits of share: {self.share} the same from i to j as from j to i: set 'relative' or 'rope: null'"
            )
        return self

    @override
    def build(self, model: "ModelConfig", init: "Init", *, part: Part) -> "Shared":
        return Shared(self, model, init, part)

    @override
    def entry(self, model: "ModelConfig") -> EntrySpec:
        names = ("k", "v") if self.share == "qk" else ("k",)
        return dict.fromkeys(names, leaf((self.kv_heads, self.head_width), model))

    @property
    def rotated(self) -> Literal["read"]:
        """When keys are rotated."""
        return "read"

    @property
    @override
    def unpaired(self) -> str | None:
        if self.share != "qk":
            return f"projection shared (share: {self.share}) writes keys alone"
        return None if self.relative is None else "projection.relative adds to the logits what no key holds"

    @property
    @override
    def remade(self) -> str | None:
        normed = self.qk_norm != "none" or self.value_norm
        return "projection shared norms keys and values when they are read" if normed else None

    @override
    def cannot_read(self, writer: ProjectionConfig) -> str | None:
        if not isinstance(writer, SharedConfig):
            return f"shared queries cannot read entries of kind '{getattr(writer, 'kind', '?')}'"
        return self.unlike(writer, "share", "kv_heads", "head_width")

    @override
    def attention_width(self, model: "ModelConfig") -> tuple[int, int]:
        return self.heads * (self.head_width + 2 * (self.relative or 0)), self.heads * self.head_width


class Shared(Projection):
    """Logits: scale norm(q_i) R_{j-i} norm(k_j) + u R_{j-i} c, where R are rotations and c is 1 in its first half, else 0."""

    def __init__(self, config: SharedConfig, model: "ModelConfig", init: "Init", part: Part):
        D, N, K, H = model.width, config.heads, config.kv_heads, config.head_width
        self.config, self.part = config, part
        self.scale = H**-0.5 if config.scale is None else config.scale
        self.softcap = config.softcap
        self.eps = model.norm.eps
        reads, writes = part != "entries", part != "queries"
        own = part == "queries" or (reads and config.share == "kv")  # a reader has no keys that could be its queries
        self.w_q = init.matrix((D, N, H), ("embed", "heads", "head")) if own else None
        if reads:
            self.w_o = init.matrix((N, H, D), ("heads", "head", "embed"), contract=2, residual=True)
        self.w_k = init.matrix((D, K, H), ("embed", "kv_heads", "head")) if writes else None
        self.w_v = init.matrix((D, K, H), ("embed", "kv_heads", "head")) if writes and config.share == "qk" else None
        normed = reads and config.qk_norm == "head"
        self.q_norm, self.k_norm = (RMSNorm((H,), ("head",), model.norm, init) if normed else None for _ in range(2))
        F = config.relative if reads else None
        self.u = None if F is None else init.sampled((N, 2 * F), ("heads", "head"), -0.1, 0.1)

    @override
    def __call__(self, x: Float[Array, "B T D"], place: Place, tail: Entry | None) -> tuple[Any, Entry | None, Entry | None]:
        k = None if self.w_k is None else _heads(x, self.w_k, "kv_heads")
        entry = None if k is None else {"k": k} if self.w_v is None else {"k": k, "v": _heads(x, self.w_v, "kv_heads")}
        if self.part == "entries":
            return None, entry, tail
        q = k if self.w_q is None else _heads(x, self.w_q, "heads")
        assert q is not None  # one of both matrices is there
        return q if self.q_norm is None else self.q_norm(q), entry, tail

    @override
    def attend(self, query: jax.Array, entries: Entry, mask: Mask, implementation: str, **terms):
        k, v = self.expand(entries)
        at, rope = mask.q_index[None], self.config.rope
        q, k = rotate(query, at, rope), rotate(k, mask.k_index, rope)
        if self.u is not None:
            u = use(self.u, jnp.float32) / self.scale  # by which the kernel multiplies all
            c = (jnp.arange(u.shape[-1]) < u.shape[-1] // 2).astype(jnp.float32)
            q, k = _beside(q, u, at), _beside(k, c, mask.k_index)
        scale, softcap = self.scale, self.softcap
        return attend(q, k, v, mask=mask, scale=scale, softcap=softcap, implementation=implementation, **terms)

    @override
    def expand(self, entries: Entry) -> tuple[Float[Array, "B S K H"], Float[Array, "B S K H"]]:
        """Keys, normed and not yet rotated, and values."""
        k = entries["k"]
        v = entries.get("v", k)
        return k if self.k_norm is None else self.k_norm(k), unit_rms(v, self.eps).astype(v.dtype) if self.config.value_norm else v

    @override
    def output(self, out: Float[Array, "B T N H"], x: Float[Array, "B T D"], query) -> Float[Array, "B T D"]:
        return linear("btnh,nhd->btd", out, self.w_o, axes=("batch", "seq", "residual"))


def _heads(x: jax.Array, weight, axis: str) -> jax.Array:
    return linear("btd,dnh->btnh", x, weight, axes=("batch", "seq", axis, "head"))


def _beside(x: Float[Array, "B T N H"], wave: Float[Array, "*N F"], at: Int[Array, "..."]) -> Float[Array, "B T N HF"]:
    """Heads and beside them a wave that is turned by where they stand."""
    turned = rotate(jnp.zeros_like(x[..., :1], jnp.float32) + wave, at, WAVES)
    return jnp.concatenate([x, turned.astype(x.dtype)], axis=-1)
