"""An attention layer: the one place where projection, sharing, memory, retention and kernel meet."""

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from mnemax.layers.feedforward import Aux
from mnemax.layers.linear import linear
from mnemax.layers.memories import Entry, Place, Reader, State
from mnemax.sharding import use

if TYPE_CHECKING:
    from mnemax.configs.schema import AttentionConfig, ModelConfig
    from mnemax.layers.param import Init

type Bus = dict[str, "Published"]
"""What layers have published so far, by name."""


@partial(jax.tree_util.register_dataclass, data_fields=["view", "entry"], meta_fields=[])
@dataclass(frozen=True)
class Published:
    """What other layers can have of a layer: its memory's view, and what the tokens of this call wrote, each leaf [B, T, ...]."""

    view: Any
    entry: Entry


class Attention(nnx.Module):
    """Writes what the projection makes into the memory and reads it; or reads what another layer has published, or only writes."""

    def __init__(self, config: "AttentionConfig", model: "ModelConfig", init: "Init"):
        reads = config.read is not None
        self.part, self.writes, self.reads = config.part, config.write, config.read
        self.projection = config.projection.build(model, init, part=config.part)
        self.memory = None if reads else config.memory.build(config.entry(model), init)
        self.below = None if reads else config.memory.below
        self.retention = None if config.retention is None else config.retention.build(model, config.projection, init)
        self.sink = init.vector((config.projection.query_heads,), ("heads",)) if config.sink_logits else None
        self.gate = _output_gate(config, model, init)
        self.residual = None if config.entry_residual is None else config.entry_residual.of
        self.mix = _mix(config, model, init)

    def init_state(self, config: "AttentionConfig", model: "ModelConfig", batch: int, capacity: int) -> State:
        """The empty state: the projection's tail and the memory, each empty where there is nothing to remember."""
        tail = config.projection.tail(model, part=self.part)
        tail = {name: jnp.zeros((batch, *leaf.shape), leaf.dtype) for name, leaf in tail.items()}
        return {"tail": tail, "memory": {} if self.memory is None else self.memory.init(batch, capacity, config.entry(model))}

    def __call__(
        self, x: Float[Array, "B T D"], place: Place, state: State, bus: Bus, implementation: str, *, last: bool = False
    ) -> tuple[Float[Array, "B T_or_1 D"] | None, State, Bus, Aux]:
        """Output (None: the layer only writes), new state, bus, and what the retention adds to the loss.

        Args:
            state: what was written before; None: x is whole rows.
            last: all tokens write, but only the last one reads; the output is [B, 1, D].
        """
        query, entry, tail = self.projection(x, place, None if state is None else state["tail"])
        memory, aux = None if state is None else state["memory"], {}
        if self.reads is not None:
            view = bus[self.reads].view
        else:
            assert entry is not None  # a writer's projection makes entries
            entry = self._mixed(entry, bus)
            if self.retention is not None:
                gates = self.retention(x, entry, place)
                entry, aux = entry | gates, self.retention.aux(gates, place) if state is None else {}
            below = None if self.below is None else bus[self.below]
            reader = Reader(query, self.projection, self.retention, implementation, below)
            view, memory = self._write(memory, entry, place, reader)
            if self.writes is not None:
                bus = {**bus, self.writes: Published(view, entry)}
        kept = None if state is None else {"tail": tail, "memory": memory}
        if self.part == "entries":
            return None, kept, bus, aux
        if last:
            x, place = x[:, -1:], place.last
            query = self.projection(x, place, None)[0]
        out, lse = view.read(query, self.projection, place, implementation)
        if self.sink is not None:  # a logit without a value: it takes its share of the softmax
            out = out * jax.nn.sigmoid(lse - use(self.sink, jnp.float32)).astype(out.dtype)[..., None]
        if self.gate is not None:
            out = out * jax.nn.sigmoid(linear("btd,dnh->btnh", x, self.gate, axes=("batch", "seq", "heads", "head")))
        return self.projection.output(out, x, query), kept, bus, aux

    def unwritten(self, x: Float[Array, "B T D"], place: Place, state: State, implementation: str) -> Published:
        """What lower layers read of this one before it has seen these tokens: zeros in their place."""
        query, entry, _ = self.projection(x, place, None if state is None else state["tail"])
        entry = jax.tree.map(jnp.zeros_like, entry)
        reader = Reader(query, self.projection, self.retention, implementation)
        return Published(self._write(None if state is None else state["memory"], entry, place, reader)[0], entry)

    def _mixed(self, entry: Entry, bus: Bus) -> Entry:
        """Some leaves moved towards what another layer wrote of the same tokens."""
        if self.residual is None:
            return entry
        other = bus[self.residual].entry

        def towards(name: str, rate: nnx.Param) -> jax.Array:
            leaf = entry[name]
            return leaf + use(rate, leaf.dtype)[:, None] * (other[name] - leaf)

        return entry | {name: towards(name, rate) for name, rate in self.mix.items()}

    def _write(self, memory: State, entry: Entry, place: Place, reader: Reader) -> tuple[Any, State]:
        assert self.memory is not None  # a reader does not write
        if memory is None:
            return self.memory.view(entry, place, reader), None
        memory, view = self.memory.update(memory, entry, place, reader)
        return view, memory


def _output_gate(config: "AttentionConfig", model: "ModelConfig", init: "Init") -> nnx.Param | None:
    """W_g [D, N, 1 or Hv] of sigmoid(W_g x), which multiplies a head's output."""
    N = config.projection.query_heads
    match config.output_gate:
        case "none":
            return None
        case "head":
            return init.matrix((model.width, N, 1), ("embed", "heads", "head"))
        case "element":
            return init.matrix((model.width, N, config.projection.attention_width(model)[1] // N), ("embed", "heads", "head"))


def _mix(config: "AttentionConfig", model: "ModelConfig", init: "Init") -> nnx.Dict:
    """For each leaf of the entry residual, a rate a head."""
    leaves = () if config.entry_residual is None else config.entry_residual.leaves
    spec = config.projection.entry(model)
    return nnx.Dict({name: init.vector(spec[name].shape[:1], ("kv_heads",), value=0.5) for name in leaves})
