"""Dual dimensionality (DAR, arXiv 2606.18587, as we read it): near tokens are read whole, far ones through a bottleneck.

    near:  k, v = W_k x, W_v x        far:  z = W_dn x, k, v = W_k W_up z, W_v W_up z        the same rotations

Which tokens are near, the memory says (`near_far`).
"""

from typing import TYPE_CHECKING, ClassVar, Literal, Self, override

import jax
from jaxtyping import Array, Float, Int
from pydantic import model_validator

from mnemax.configs.base import PositiveFloat, PositiveInt
from mnemax.layers.linear import linear
from mnemax.layers.memories import Entry, EntrySpec, Place
from mnemax.layers.projections import Part, Projection, ProjectionConfig, leaf
from mnemax.layers.rotary import RotaryConfig, rotate

if TYPE_CHECKING:
    from mnemax.configs.schema import ModelConfig
    from mnemax.layers.param import Init


class DistanceAdaptiveConfig(ProjectionConfig):
    """Grouped-query attention that also writes a narrow vector of each token, from which it is read when it is far."""

    gates: ClassVar[frozenset[str]] = frozenset({"z"})

    kind: Literal["distance_adaptive"] = "distance_adaptive"
    heads: PositiveInt
    kv_heads: PositiveInt
    head_width: PositiveInt
    rank: PositiveInt
    """Width of the bottleneck; a quarter of the model's, as published."""
    rope: RotaryConfig | None = RotaryConfig()
    """null: NoPE."""
    scale: PositiveFloat | None = None
    """Multiplies the logits; default head_width^-1/2."""

    @model_validator(mode="after")
    def _divides(self) -> Self:
        if self.heads % self.kv_heads:
            raise ValueError(f"heads ({self.heads}) is not divisible by kv_heads ({self.kv_heads})")
        if self.rope is not None:
            self.rope.check_pairs("head_width", self.head_width)
        return self

    @override
    def build(self, model: "ModelConfig", init: "Init", *, part: Part) -> "DistanceAdaptive":
        return DistanceAdaptive(self, model, init)

    @override
    def entry(self, model: "ModelConfig") -> EntrySpec:
        head = leaf((self.kv_heads, self.head_width), model)
        return {"k": head, "v": head, "z": leaf((self.rank,), model)}

    @property
    @override
    def by_head(self) -> bool:
        return False

    @property
    @override
    def unpaired(self) -> str | None:
        return "projection distance_adaptive also writes what far tokens are read from"

    @override
    def cannot_read(self, writer: ProjectionConfig) -> str | None:
        return "distance_adaptive makes far keys and values with the matrices of its own layer: it reads its own memory only"

    @override
    def attention_width(self, model: "ModelConfig") -> tuple[int, int]:
        return self.heads * self.head_width, self.heads * self.head_width


class DistanceAdaptive(Projection):
    """Queries and keys are rotated by row index, which a far token's slot knows, rather than by position in the document."""

    softcap = None

    def __init__(self, config: DistanceAdaptiveConfig, model: "ModelConfig", init: "Init"):
        D, N, K, H, R = model.width, config.heads, config.kv_heads, config.head_width, config.rank
        self.rope, self.scale = config.rope, H**-0.5 if config.scale is None else config.scale
        self.w_q = init.matrix((D, N, H), ("embed", "heads", "head"))
        self.w_k, self.w_v = (init.matrix((D, K, H), ("embed", "kv_heads", "head")) for _ in range(2))
        self.w_o = init.matrix((N, H, D), ("heads", "head", "embed"), contract=2, residual=True)
        self.w_dn = init.matrix((D, R), ("embed", "latent"))
        self.w_up = init.matrix((R, D), ("latent", "embed"))

    @override
    def query(self, x: Float[Array, "B T D"], place: Place) -> Float[Array, "B T N H"]:
        q = linear("btd,dnh->btnh", x, self.w_q, axes=("batch", "seq", "heads", "head"))
        return rotate(q, place.index[None], self.rope)

    @override
    def entry(self, x: Float[Array, "B T D"], place: Place) -> Entry:
        return self._keys_and_values(x, place.index[None]) | {
            "z": linear("btd,dr->btr", x, self.w_dn, axes=("batch", "seq", "latent"))
        }

    def far(self, z: Float[Array, "B S R"], index: Int[Array, "#B S"]) -> Entry:
        """Keys and values of far tokens, of these row indices."""
        return self._keys_and_values(linear("bsr,rd->bsd", z, self.w_up, axes=("batch", "seq", "residual")), index)

    def _keys_and_values(self, x: Float[Array, "B S D"], index: Int[Array, "#B S"]) -> Entry:
        k, v = (linear("bsd,dkh->bskh", x, w, axes=("batch", "seq", "kv_heads", "head")) for w in (self.w_k, self.w_v))
        return {"k": rotate(k, index, self.rope), "v": v}

    @override
    def expand(self, entries: Entry) -> tuple[Float[Array, "B S K H"], Float[Array, "B S K H"]]:
        return entries["k"], entries["v"]

    @override
    def output(self, out: Float[Array, "B T N H"], x: Float[Array, "B T D"], query: jax.Array) -> Float[Array, "B T D"]:
        return linear("btnh,nhd->btd", out, self.w_o, axes=("batch", "seq", "residual"))
