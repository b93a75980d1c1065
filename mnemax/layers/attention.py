"""An attention layer: the one place where projection, sharing, memory, retention and kernel meet."""

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from mnemax.layers.memories import Place, State
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
        self.memory = None if reads else config.memory.build(config.projection.entry(model), init)
        self.retention = None if config.retention is None else config.retention.build(model, init)
        self.sink = init.vector((config.projection.heads,), ("heads",)) if config.sink_logits else None

    def __call__(
        self, x: Float[Array, "B T D"], place: Place, state: State, bus: Bus, implementation: str
    ) -> tuple[Float[Array, "B T D"], State, Bus]:
        """Output, new state, bus. `state` None: x is whole rows, before which nothing was written; a reader's state is ()."""
        query = self.projection.query(x, place)
        view, state = (bus[self.reads], state) if self.reads is not None else self._write(x, place, state)
        if self.writes is not None:
            bus = {**bus, self.writes: view}
        out, lse = view.read(query, self.projection, place, implementation)
        if self.sink is not None:  # a logit without a value: it takes its share of the softmax
            out = out * jax.nn.sigmoid(lse - use(self.sink, jnp.float32)).astype(out.dtype)[..., None]
        return self.projection.output(out, x), state, bus

    def _write(self, x: jax.Array, place: Place, state: State) -> tuple[Any, State]:
        entry = self.projection.entry(x, place)
        retention = None if self.retention is None else self.retention(x, entry, place)
        assert self.memory is not None  # a reader does not write
        if state is None:
            return self.memory.view(entry, place, retention), None
        state, view = self.memory.update(state, entry, place, retention)
        return view, state
