"""Grouped-query attention (Ainslie et al. 2023, arXiv 2305.13245): `heads` queries share `kv_heads` keys and values.

kv_heads = heads is multi-head attention, kv_heads = 1 multi-query attention.
"""

from typing import TYPE_CHECKING, Any, Literal, Self, override

import jax
from jaxtyping import Array, Float
from pydantic import model_validator

from mnemax.configs.base import PositiveFloat, PositiveInt
from mnemax.kernels.mask import Mask
from mnemax.layers.convolution import DynamicTaps, ShortConvolution
from mnemax.layers.linear import linear
from mnemax.layers.memories import Entry, EntrySpec, Place
from mnemax.layers.norm import RMSNorm, unit_rms
from mnemax.layers.projections import Part, Projection, ProjectionConfig, leaf
from mnemax.layers.rotary import RotaryConfig, rotate
from mnemax.sharding import use

if TYPE_CHECKING:
    from mnemax.configs.schema import ModelConfig
    from mnemax.layers.param import Init


class GQAConfig(ProjectionConfig):
    """Per-head queries, fewer keys and values."""

    kind: Literal["gqa"] = "gqa"
    heads: PositiveInt
    kv_heads: PositiveInt
    head_width: PositiveInt
    value_width: PositiveInt | None = None
    """Of a value; default head_width."""
    rope: RotaryConfig | None = RotaryConfig()
    """null: NoPE."""
    rotated: Literal["written", "read"] = "written"
    """When keys are rotated: before they are cached, or each time they are read, so that what merges them merges them unrotated."""
    taps: PositiveInt | None = None
    """Tokens that short convolutions mix, the present one counted, of queries, keys and values each; null: none."""
    dynamic_rank: PositiveInt | None = None
    """Rank of what each token adds to the taps (dynamic short convolutions, arXiv 2606.03825); null: taps are the same for all."""
    qk_norm: Literal["none", "head", "joint"] = "none"
    """RMSNorm on queries and keys before the rotation: each head (Qwen3, Gemma-3) or all heads as one vector (OLMo-2)."""
    value_norm: bool = False
    """RMSNorm without a scale on each head's value (Gemma-4)."""
    qkv_bias: bool = False
    output_bias: bool = False
    scale: PositiveFloat | None = None
    """Multiplies the logits; default head_width^-1/2."""
    softcap: PositiveFloat | None = None
    """c of c tanh(logit / c) (Gemma-2)."""

    @model_validator(mode="before")
    @classmethod
    def _one_spelling(cls, given: Any) -> Any:
        """Values that are said to be as wide as keys are those of the default: exports and comparisons see one model."""
        if isinstance(given, dict) and given.get("value_width") is not None and given["value_width"] == given.get("head_width"):
            return {**given, "value_width": None}
        return given

    @model_validator(mode="after")
    def _divides(self) -> Self:
        if self.heads % self.kv_heads:
            raise ValueError(f"heads ({self.heads}) is not divisible by kv_heads ({self.kv_heads})")
        if self.dynamic_rank is not None and self.taps is None:
            raise ValueError(f"dynamic_rank ({self.dynamic_rank}) adds to taps, of which there are none (taps: null)")
        if self.rope is not None:
            self.rope.check_pairs("head_width", self.head_width)
        return self

    @override
    def build(self, model: "ModelConfig", init: "Init", *, part: Part) -> "GQA":
        return GQA(self, model, init, part)

    @override
    def entry(self, model: "ModelConfig") -> EntrySpec:
        return {"k": leaf((self.kv_heads, self.head_width), model), "v": leaf((self.kv_heads, self.values), model)}

    @override
    def tail(self, model: "ModelConfig", *, part: Part) -> EntrySpec:
        if self.taps is None:
            return {}
        q = {"q": leaf((self.taps - 1, self.heads, self.head_width), model)}
        kv = {name: leaf((self.taps - 1, *spec.shape), model) for name, spec in self.entry(model).items()}
        return {"whole": q | kv, "queries": q, "entries": kv}[part]

    @override
    def cannot_read(self, writer: ProjectionConfig) -> str | None:
        if not isinstance(writer, GQAConfig):
            return f"gqa queries cannot read entries of kind '{getattr(writer, 'kind', '?')}'"
        rope = ("rope",) if self.rotated == "written" else ()
        return self.unlike(writer, "kv_heads", "head_width", "values", "rotated", "value_norm", *rope)

    @override
    def attention_width(self, model: "ModelConfig") -> tuple[int, int]:
        return self.heads * self.head_width, self.heads * self.values

    @property
    def values(self) -> int:
        """Width of a value."""
        return self.head_width if self.value_width is None else self.value_width


class GQA(Projection):
    """q = rope(norm(W_q x)), k = rope(norm(W_k x)), v = W_v x, out = W_o o. Keys are cached rotated."""

    def __init__(self, config: GQAConfig, model: "ModelConfig", init: "Init", part: Part):
        D, N, K, H, Hv = model.width, config.heads, config.kv_heads, config.head_width, config.values
        self.config = config
        self.part = part
        self.scale = H**-0.5 if config.scale is None else config.scale
        self.softcap = config.softcap
        self.eps = model.norm.eps
        if part != "entries":
            self.w_q = init.matrix((D, N, H), ("embed", "heads", "head"))
            self.w_o = init.matrix((N, Hv, D), ("heads", "head", "embed"), contract=2, residual=True)
            self.b_q = init.vector((N, H), ("heads", "head")) if config.qkv_bias else None
            self.b_o = init.vector((D,), ("residual",)) if config.output_bias else None
            self.q_norm = _qk_norm(config, N, "heads", model, init)
            self.q_conv, self.q_taps = _conv(config, (N, H), "heads", init)
        if part != "queries":
            self.w_k = init.matrix((D, K, H), ("embed", "kv_heads", "head"))
            self.w_v = init.matrix((D, K, Hv), ("embed", "kv_heads", "head"))
            self.b_k = init.vector((K, H), ("kv_heads", "head")) if config.qkv_bias else None
            self.b_v = init.vector((K, Hv), ("kv_heads", "head")) if config.qkv_bias else None
            self.k_norm = _qk_norm(config, K, "kv_heads", model, init)
            self.k_conv, self.k_taps = _conv(config, (K, H), "kv_heads", init)
            self.v_conv, self.v_taps = _conv(config, (K, Hv), "kv_heads", init)

    @override
    def __call__(self, x: Float[Array, "B T D"], place: Place, tail: Entry | None) -> tuple[Any, Entry | None, Entry]:
        q, entry, new = None, None, {}

        def mixed(name: str, heads: jax.Array, conv: ShortConvolution | None, taps: DynamicTaps | None) -> jax.Array:
            if conv is None:
                return heads
            y, new[name] = conv(heads, place, None if tail is None else tail[name], None if taps is None else taps(x))
            return heads + y

        if self.part != "entries":
            q = self._rotated(mixed("q", _heads(x, self.w_q, self.b_q, "heads"), self.q_conv, self.q_taps), self.q_norm, place)
        if self.part != "queries":
            k = self._rotated(mixed("k", _heads(x, self.w_k, self.b_k, "kv_heads"), self.k_conv, self.k_taps), self.k_norm, place)
            v = mixed("v", _heads(x, self.w_v, self.b_v, "kv_heads"), self.v_conv, self.v_taps)
            entry = {"k": k, "v": unit_rms(v, self.eps).astype(v.dtype) if self.config.value_norm else v}
        return q, entry, new

    @override
    def attend(self, query: jax.Array, entries: Entry, mask: Mask, implementation: str, **terms):
        if self.config.rotated == "read":  # by row index: what counts is how far apart two tokens stand
            query = rotate(query, mask.q_index[None], self.config.rope)
            entries = entries | {"k": rotate(entries["k"], mask.k_index, self.config.rope)}
        return super().attend(query, entries, mask, implementation, **terms)

    @override
    def expand(self, entries: Entry) -> tuple[Float[Array, "B S K H"], Float[Array, "B S K Hv"]]:
        return entries["k"], entries["v"]

    @override
    def output(self, out: Float[Array, "B T N Hv"], x: Float[Array, "B T D"], query) -> Float[Array, "B T D"]:
        y = linear("btnh,nhd->btd", out, self.w_o, axes=("batch", "seq", "residual"))
        return y if self.b_o is None else y + use(self.b_o, y.dtype)

    def _rotated(self, heads: jax.Array, norm: RMSNorm | None, place: Place) -> jax.Array:
        heads = heads if norm is None else norm(heads)
        return heads if self.config.rotated == "read" else rotate(heads, place.positions, self.config.rope)


def _heads(x, weight, bias, axis: str) -> jax.Array:
    y = linear("btd,dnh->btnh", x, weight, axes=("batch", "seq", axis, "head"))
    return y if bias is None else y + use(bias, y.dtype)


def _conv(
    config: GQAConfig, channels: tuple[int, int], axis: str, init: "Init"
) -> tuple[ShortConvolution | None, DynamicTaps | None]:
    if config.taps is None:
        return None, None
    static, rank = ShortConvolution(config.taps, channels, (axis, "head"), init), config.dynamic_rank
    return static, None if rank is None else DynamicTaps(config.taps, rank, channels, (axis, "head"), init)


def _qk_norm(config: GQAConfig, heads: int, axis: str, model: "ModelConfig", init: "Init") -> RMSNorm | None:
    match config.qk_norm:
        case "none":
            return None
        case "head":
            return RMSNorm((config.head_width,), ("head",), model.norm, init)
        case "joint":
            return RMSNorm((heads, config.head_width), (axis, "head"), model.norm, init)
