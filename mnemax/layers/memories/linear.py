"""Linear attention: the outer products of keys and values, summed into one matrix a head and faded by a decay.

    S_t = e^{g_t} S_{t-1} + k_t v_t^T        o_t = S_t^T q_t

Without a decay: Katharopoulos et al. 2020 (arXiv 2006.16236), unnormalised. With Mamba-2's projection: its SSD (Dao and Gu 2024,
arXiv 2405.21060). With gated retention's: Sun et al. 2024 (arXiv 2405.05254).
"""

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal, override

import jax
import jax.numpy as jnp

from mnemax.configs.base import PositiveInt
from mnemax.kernels import recurrence
from mnemax.layers.memories import Entry, EntrySpec, Memory, MemoryConfig, Place, State, exceeding

if TYPE_CHECKING:
    from mnemax.configs.schema import AttentionConfig


class MatrixConfig(MemoryConfig):
    """The base of memories that are one matrix a head."""

    normalised = False
    any_query = False

    chunk: PositiveInt = 64
    """Tokens that are computed in parallel; of speed alone."""

    def size(self, entry: EntrySpec) -> int:
        """Numbers in the matrices of one row."""
        heads, width = entry["v"].shape
        return heads * entry["k"].shape[-1] * width

    @override
    def cache_bytes(self, batch: int, capacity: int, entry: EntrySpec) -> int:
        return batch * 4 * self.size(entry)

    @override
    def refuses(self, attention: "AttentionConfig") -> str | None:
        rope, rotated = (getattr(attention.projection, field, None) for field in ("rope", "rotated"))
        late = rope is not None and rotated == "read"
        if late:
            return "sums keys, which projection.rotated: read would rotate too late"
        if getattr(attention.projection, "softcap", None) is not None:
            return "has no logits, which projection.softcap would cap"
        reason = attention.projection.unpaired or attention.projection.remade
        return None if reason is None else f"sums products of keys and values, and {reason}"

    @override
    def refuses_length(self, longest: int) -> str | None:
        return exceeding(self.chunk, longest)

    @override
    def read_bytes(self, context: int, entry: EntrySpec) -> float:
        return 4 * self.size(entry)

    @override
    def flops(self, context: int, projection, model) -> float:
        entry = projection.entry(model)
        readers = max(projection.heads, entry["v"].shape[0])
        return 2.0 * self.size(entry) * (1 + readers / entry["v"].shape[0])


class LinearConfig(MatrixConfig):
    """One matrix a head, to which every token adds its key times its value; it fades by the gate `log_decay`, where one is made."""

    takes = frozenset({"log_decay"})

    kind: Literal["linear"] = "linear"

    @override
    def build(self, entry: EntrySpec, init) -> "Linear":
        return Linear(self.chunk)


@partial(jax.tree_util.register_dataclass, data_fields=["written"], meta_fields=[])
@dataclass(frozen=True)
class Recurrence:
    """The view of a matrix state: what each token's state was."""

    written: recurrence.Written

    def read(self, query, projection, place: Place, implementation: str):
        """o of every query; there is no log-sum-exp."""
        return recurrence.read(projection.plain(query), self.written), None


class Linear(Memory):
    """State: S [B, V, H, Hv] in float32, V value heads. With the gate `beta`, written by the delta rule (`delta.py`)."""

    def __init__(self, chunk: int):
        self.chunk = chunk

    @override
    def init(self, batch: int, capacity: int, entry: EntrySpec) -> State:
        heads, width = entry["v"].shape
        return {"S": jnp.zeros((batch, heads, entry["k"].shape[-1], width), jnp.float32)}

    @override
    def update(self, state: State, entry: Entry, place: Place, reader) -> tuple[State, Recurrence]:
        decay, beta = entry.get("log_decay"), entry.get("beta")
        if decay is None:
            decay = jnp.zeros_like(entry["v"][..., 0], jnp.float32)
        S, written = recurrence.write(entry["k"], entry["v"], decay, beta, state["S"], place.index, place.start, self.chunk)
        return {"S": S}, Recurrence(written)
