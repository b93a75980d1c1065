"""Near tokens whole and far tokens narrow (DAR, arXiv 2606.18587, as we read it).

What the projection writes of the latest `size` tokens is kept whole, and of every token its leaf `z`. A query reads the former as
they were written and those before them from their z, in one softmax.
"""

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, override

import jax
from jaxtyping import Array, Float

from mnemax.configs.base import PositiveInt
from mnemax.kernels.merge import merge
from mnemax.layers.memories import Entry, EntrySpec, Memory, MemoryConfig, Place, Slots, State
from mnemax.layers.memories.full import Full, FullConfig
from mnemax.layers.memories.window import Window, WindowConfig

if TYPE_CHECKING:
    from mnemax.configs.schema import ModelConfig
    from mnemax.layers.projections import ProjectionConfig
    from mnemax.layers.projections.distance_adaptive import DistanceAdaptive

FAR = "z"


class NearFarConfig(MemoryConfig):
    """The latest `size` tokens whole, the present one counted, and of all tokens the narrow part."""

    takes: ClassVar[frozenset[str]] = frozenset({FAR})
    needs: ClassVar[frozenset[str]] = frozenset({FAR})

    kind: Literal["near_far"] = "near_far"
    size: PositiveInt

    @override
    def build(self, entry: EntrySpec, init) -> "NearFar":
        return NearFar(self.size)

    @override
    def cache_bytes(self, batch: int, capacity: int, entry: EntrySpec) -> int:
        near, far = _parts(entry)
        return WindowConfig(size=self.size).cache_bytes(batch, capacity, near) + FullConfig().cache_bytes(batch, capacity, far)

    @override
    def keys_read(self, context: int) -> float:
        return context

    @override
    def read_bytes(self, context: int, entry: EntrySpec) -> float:
        near, far = _parts(entry)
        beyond = FullConfig().read_bytes(max(context - self.size, 0), far)
        return WindowConfig(size=self.size).read_bytes(context, near) + beyond

    @override
    def flops(self, context: int, projection: "ProjectionConfig", model: "ModelConfig") -> float:
        k, v = (projection.entry(model)[name].size for name in ("k", "v"))
        return super().flops(context, projection, model) + 2.0 * model.width * (k + v)  # made a second time, as of a far token


def _parts[Leaf](entry: dict[str, Leaf]) -> tuple[dict[str, Leaf], dict[str, Leaf]]:
    """What is kept of near tokens, and what is kept of all."""
    return {name: leaf for name, leaf in entry.items() if name != FAR}, {FAR: entry[FAR]}


@partial(jax.tree_util.register_dataclass, data_fields=["near", "far"], meta_fields=["size"])
@dataclass(frozen=True)
class NearFarView:
    """Two sets of slots that every token is in, and that each query sees a part of: what is `size` tokens old is far."""

    near: Slots
    far: Slots
    size: int

    def read(
        self, query: Any, projection: "DistanceAdaptive", place: Place, implementation: str
    ) -> tuple[Float[Array, "B T N Hv"], Float[Array, "B T N"]]:
        """Output and log-sum-exp over both."""
        near = self.near.read(query, projection, place, implementation)
        index = self.far.index
        if index.shape[1] <= self.size:  # nothing can be far yet
            return near
        # To the mask a token comes `size` tokens late, and so does the document's first.
        late = Slots(projection.far(self.far.entries[FAR], index), index + self.size, aligned=self.far.aligned)
        return merge(near, late.read(query, projection, Place(place.index, place.positions - self.size), implementation))


class NearFar(Memory):
    """State: a window of near entries, and slots of every token's z."""

    def __init__(self, size: int):
        self.size, self.near, self.far = size, Window(size, 0), Full()

    @override
    def init(self, batch: int, capacity: int, entry: EntrySpec) -> State:
        near, far = _parts(entry)
        return {"near": self.near.init(batch, capacity, near), "far": self.far.init(batch, capacity, far)}

    @override
    def update(self, state: State, entry: Entry, place: Place, reader) -> tuple[State, NearFarView]:
        near, far = _parts(entry)
        near_state, near_slots = self.near.update(state["near"], near, place, reader)
        far_state, far_slots = self.far.update(state["far"], far, place, reader)
        return {"near": near_state, "far": far_state}, NearFarView(near_slots, far_slots, self.size)

    @override
    def view(self, entry: Entry, place: Place, reader) -> NearFarView:
        near, far = _parts(entry)
        return NearFarView(self.near.view(near, place, reader), self.far.view(far, place, reader), self.size)
