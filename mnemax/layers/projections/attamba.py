"""Attamba's projection (Akhauri et al. 2024, arXiv 2411.17685): keys and values by small state-space models over chunks of tokens.

    K = x + SSM_K(x)        V = x + SSM_V(x)        q = RoPE(W_q x)        y = W_o o

Both models begin anew with every chunk, so the last token of a chunk has read all of it and can stand for it (memory `chunk_ends`).
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Literal, Self, override

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from pydantic import model_validator

from mnemax.configs.base import NonNegativeInt, PositiveInt
from mnemax.errors import UserError
from mnemax.kernels import recurrence
from mnemax.layers.linear import linear
from mnemax.layers.memories import Entry, EntrySpec, Place
from mnemax.layers.projections import Part, Projection, ProjectionConfig, leaf
from mnemax.layers.projections.mamba2 import Mamba2, Mamba2Config
from mnemax.layers.rotary import RotaryConfig, rotate
from mnemax.sharding import shard

if TYPE_CHECKING:
    from mnemax.configs.schema import ModelConfig
    from mnemax.layers.param import Init


class AttambaConfig(ProjectionConfig):
    """Keys and values that have read their chunk: the layer's input and what a small Mamba-2 adds to it."""

    kind: Literal["attamba"] = "attamba"
    heads: PositiveInt
    """Of queries, keys and values; the model's width is divided among them."""
    chunk: PositiveInt
    offset: NonNegativeInt = 0
    """As in `chunk_ends`."""
    ssm: Mamba2Config
    """Both models'; the paper's have 128 numbers of x in 8 heads and a state_width of 128."""
    rope: RotaryConfig | None = RotaryConfig()
    """null: NoPE."""

    @model_validator(mode="after")
    def _within_a_chunk(self) -> Self:
        if self.offset >= self.chunk:
            raise ValueError(f"offset ({self.offset}) is not below chunk ({self.chunk})")
        return self

    @override
    def build(self, model: "ModelConfig", init: "Init", *, part: Part) -> "Attamba":
        return Attamba(self, model, init)

    @property
    def kv_heads(self) -> int:
        """Heads of keys and values."""
        return self.heads

    @override
    def entry(self, model: "ModelConfig") -> EntrySpec:
        if model.width % self.heads:
            raise UserError(f"projection attamba: model.width ({model.width}) is not divisible by heads ({self.heads}).")
        head = leaf((self.heads, model.width // self.heads), model)
        if self.rope is not None and int(head.shape[1] * self.rope.fraction) % 2:
            raise UserError(f"projection attamba: rope rotates pairs, and a head is {head.shape[1]} wide (model.width / heads).")
        return {"k": head, "v": head}

    @override
    def tail(self, model: "ModelConfig", *, part: Part) -> EntrySpec:
        s = self.ssm
        state = jax.ShapeDtypeStruct((s.heads, s.state_width, s.head_width), jnp.dtype("float32"))
        one = s.tail(model, part="whole") | {"S": state}
        return {f"{leaf}_{name}": spec for leaf in "kv" for name, spec in one.items()}

    @override
    def cannot_read(self, writer: ProjectionConfig) -> str | None:
        return "attamba makes its own keys and values of its input: it reads its own memory only"

    @override
    def attention_width(self, model: "ModelConfig") -> tuple[int, int]:
        return model.width, model.width


class Attamba(Projection):
    """There are no key and value matrices. The tail is that of both models: their convolutions' and their states."""

    softcap = None

    def __init__(self, config: AttambaConfig, model: "ModelConfig", init: "Init"):
        D, N = model.width, config.heads
        H = D // N
        self.config, self.scale = config, H**-0.5
        self.w_q = init.matrix((D, N, H), ("embed", "heads", "head"))
        self.ssm_k, self.ssm_v = (Mamba2(config.ssm, model, init) for _ in range(2))
        self.w_o = init.matrix((N, H, D), ("heads", "head", "embed"), contract=2, residual=True)

    @override
    def __call__(self, x: Float[Array, "B T D"], place: Place, tail: Entry | None) -> tuple[jax.Array, Entry, Entry]:
        q = linear("btd,dnh->btnh", x, self.w_q, axes=("batch", "seq", "heads", "head"))
        k, tail_k = self._mixed(self.ssm_k, x, place, _part(tail, "k_"))
        v, tail_v = self._mixed(self.ssm_v, x, place, _part(tail, "v_"))
        new = {f"k_{name}": leaf for name, leaf in tail_k.items()} | {f"v_{name}": leaf for name, leaf in tail_v.items()}
        rope, at = self.config.rope, place.positions
        return rotate(q, at, rope), {"k": rotate(k, at, rope), "v": v}, new

    def _mixed(self, ssm: Mamba2, x: jax.Array, place: Place, tail: Entry | None) -> tuple[Float[Array, "B T N H"], Entry]:
        """x + SSM(x) by heads, and the model's new tail: each chunk is a document of its own to it."""
        c, s = self.config, self.config.ssm
        first = jnp.maximum((place.positions + c.offset) // c.chunk * c.chunk - c.offset, 0)
        place = replace(place, positions=place.positions - first)
        query, entry, new = ssm(x, place, tail)
        none = jnp.zeros((x.shape[0], s.heads, s.state_width, s.head_width), jnp.float32)
        state = none if tail is None else tail["S"]
        state, written = recurrence.write(
            entry["k"], entry["v"], entry["log_decay"], None, state, place.index, place.start, c.chunk
        )
        y = x + ssm.output(recurrence.read(ssm.plain(query), written), x, query)
        heads = shard(y.reshape(*y.shape[:2], c.heads, -1), "batch", "seq", "heads", "head")
        return heads, new | {"S": state}

    @override
    def expand(self, entries: Entry) -> tuple[Float[Array, "B S K H"], Float[Array, "B S K Hv"]]:
        return entries["k"], entries["v"]

    @override
    def output(self, out: Float[Array, "B T N H"], x: Float[Array, "B T D"], query) -> Float[Array, "B T D"]:
        return linear("btnh,nhd->btd", out, self.w_o, axes=("batch", "seq", "residual"))


def _part(tail: Entry | None, prefix: str) -> Entry | None:
    return None if tail is None else {name.removeprefix(prefix): leaf for name, leaf in tail.items() if name.startswith(prefix)}
