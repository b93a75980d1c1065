"""An attention layer: the one place where projection, sharing, memory, retention and kernel meet."""

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from mnemax.layers.feedforward import Aux
from mnemax.layers.memories import Entry, Place, Reader, State
from mnemax.sharding import use

if TYPE_CHECKING:
    from mnemax.configs.schema import AttentionConfig, ModelConfig
    from mnemax.layers.param import Init

type Bus = dict[str, Any]
"""The views that layers have published so far, by name."""


class Attention(nnx.Module):
    """Writes what the projection makes into the memory and reads it, or reads what another layer has published."""

    def __init__(self, config: "AttentionConfig", model: "ModelConfig", init: "Init"):
        reads = config.read is not None
        self.writes, self.reads = config.write, config.read
        self.projection = config.projection.build(model, init, reads=reads)
        self.memory = None if reads else config.memory.build(config.entry(model), init)
        self.retention = None if config.retention is None else config.retention.build(model, config.projection, init)
        self.sink = init.vector((config.projection.heads,), ("heads",)) if config.sink_logits else None

    def init_state(self, config: "AttentionConfig", model: "ModelConfig", batch: int, capacity: int) -> State:
        """The empty state: the projection's tail and the memory, each empty where there is nothing to remember."""
        tail = config.projection.tail(model, reads=self.reads is not None)
        tail = {name: jnp.zeros((batch, *leaf.shape), leaf.dtype) for name, leaf in tail.items()}
        return {"tail": tail, "memory": {} if self.memory is None else self.memory.init(batch, capacity, config.entry(model))}

    def __call__(
        self, x: Float[Array, "B T D"], place: Place, state: State, bus: Bus, implementation: str
    ) -> tuple[Float[Array, "B T D"], State, Bus, Aux]:
        """Output, new state, bus, and what the retention adds to the loss. `state` None: x is whole rows, before which nothing was
        written."""
        query, entry, tail = self.projection(x, place, None if state is None else state["tail"])
        memory, aux = None if state is None else state["memory"], {}
        if self.reads is not None:
            view = bus[self.reads]
        else:
            assert entry is not None  # a writer's projection makes entries
            if self.retention is not None:
                gates = self.retention(x, entry, place)
                entry, aux = entry | gates, self.retention.aux(gates, place) if state is None else {}
            view, memory = self._write(memory, entry, place, Reader(query, self.projection, self.retention, implementation))
        if self.writes is not None:
            bus = {**bus, self.writes: view}
        out, lse = view.read(query, self.projection, place, implementation)
        if self.sink is not None:  # a logit without a value: it takes its share of the softmax
            out = out * jax.nn.sigmoid(lse - use(self.sink, jnp.float32)).astype(out.dtype)[..., None]
        return self.projection.output(out, x, query), None if state is None else {"tail": tail, "memory": memory}, bus, aux

    def _write(self, memory: State, entry: Entry, place: Place, reader: Reader) -> tuple[Any, State]:
        assert self.memory is not None  # a reader does not write
        if memory is None:
            return self.memory.view(entry, place, reader), None
        memory, view = self.memory.update(memory, entry, place, reader)
        return view, memory
