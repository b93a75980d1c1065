"""A stage: a short list of layers, repeated; stacked and scanned, so that compile time is flat in depth."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from mnemax.kernels.xla import ATTENTION
from mnemax.layers.attention import Bus
from mnemax.layers.feedforward import Aux, add_aux
from mnemax.layers.memories import Place, State
from mnemax.layers.param import Init
from mnemax.models.block import Block

if TYPE_CHECKING:
    from mnemax.configs.schema import ModelConfig, StageConfig

policies = jax.checkpoint_policies
REMAT = {
    "dots": policies.save_from_both_policies(policies.dots_with_no_batch_dims_saveable, policies.save_only_these_names(ATTENTION)),
    "full": policies.nothing_saveable,
}


class Stage(nnx.Module):
    """`repeat` groups of layers. Names written inside a repeat are local to it; a stage of one repeat exports its names."""

    def __init__(self, config: "StageConfig", model: "ModelConfig", key: jax.Array):
        self.config = config
        self.model = model

        def group(key: jax.Array) -> nnx.List:
            init = Init(model, key)
            return nnx.List([Block(layer, model, init) for layer in config.layers])

        self.layers = jax.vmap(group)(jax.random.split(key, config.repeat))

    def init_state(self, batch: int, capacity: int) -> list[State]:
        """Each layer's empty state, stacked over repeats (or a tuple of them, as the weights are)."""

        def stacked(block: Block, config) -> State:
            state = block.attention.init_state(config.attention, self.model, batch, capacity)
            if self.unstacked:
                return jax.tree.map(lambda a: tuple(jnp.copy(a) for _ in range(self.config.repeat)), state)
            return jax.tree.map(lambda a: jnp.repeat(a[None], self.config.repeat, axis=0), state)

        return [stacked(*both) for both in zip(self.layers, self.config.layers, strict=True)]

    def __call__(
        self,
        x: Float[Array, "B T D"],
        place: Place,
        states: list[State] | None,
        bus: Bus,
        *,
        remat: str = "none",
        implementation: str = "auto",
        cut: int | None = None,
    ) -> tuple[Float[Array, "B T_or_1 D"], list[State] | None, Bus, Aux]:
        """Residual stream, states (stacked over repeats), bus for the next stage, auxiliary scalars summed over repeats.

        `cut`: the layer of which, and after which, only the last token's output is needed.
        """

        def repeat(x: jax.Array, layers_and_states: Any) -> Any:
            layers, states = layers_and_states
            if self.config.passes is None:
                x, states, names, aux = _run(layers, states, x, place, bus, implementation, cut)
            else:
                x, states, names, aux = self._condensed(layers, states, x, place, bus, implementation)
            return x, (states, names if self.config.repeat == 1 else None, aux)

        if remat in REMAT:
            repeat = jax.checkpoint(repeat, policy=REMAT[remat], prevent_cse=False)
        if self.unstacked:
            return self._unrolled(repeat, x, states, bus)
        if self.config.repeat == 1:
            x, (states, bus, aux) = repeat(x, jax.tree.map(lambda a: a[0], (self.layers, states)))
            return x, jax.tree.map(lambda a: a[None], states), bus, aux
        x, (states, _, aux) = jax.lax.scan(repeat, x, (self.layers, states))
        return x, states, bus, jax.tree.map(jnp.sum, aux)

    def _condensed(self, layers, states, x: jax.Array, place: Place, bus: Bus, implementation: str):
        """As `_run`, where layers read what an upper one writes (layer-condensed sharing, arXiv 2405.10637, section 2.2).

        Every pass runs the stage on the same input; what is read of an upper layer is what it wrote in the pass before, in the
        first one zeros, and of earlier tokens only. After n passes the first n tokens are exact, so a decode step needs one.
        """
        assert self.config.passes is not None  # or `_run` would do
        passes = min(self.config.passes, x.shape[1])
        trained = min(self.config.trained_passes, passes)
        upper = self.config.condensed
        seen = {
            name: layers[i].attention.unwritten(x, place, None if states is None else states[i], implementation)
            for name, i in upper.items()
        }

        def once(inputs, seen: Bus):
            layers, states, x, bus = inputs
            earlier = {name: replace(one, view=replace(one.view, strict=True)) for name, one in seen.items()}
            return _run(layers, states, x, place, bus | earlier, implementation, None)

        def written(inputs, seen: Bus) -> Bus:
            names = once(inputs, seen)[2]
            return {name: names[name] for name in upper}

        inputs = (layers, states, x, bus)
        if passes > trained:
            still, seen = jax.lax.stop_gradient((inputs, seen))
            seen, _ = jax.lax.scan(lambda seen, _: (written(still, seen), None), seen, length=passes - trained)
        for _ in range(trained - 1):
            seen = written(inputs, seen)
        return once(inputs, seen)

    @property
    def unstacked(self) -> bool:
        """Whether weights are tuples of one array a repeat (`params.unstack`): then nothing is sliced, and nothing is scanned."""
        return isinstance(jax.tree.leaves(self.layers, is_leaf=_is_tuple)[0], tuple)

    def _unrolled(self, repeat, x: jax.Array, states: list[State] | None, bus: Bus):
        new, names, total = [], None, {}
        for r in range(self.config.repeat):
            layers, state = (jax.tree.map(lambda leaf: leaf[r], tree, is_leaf=_is_tuple) for tree in (self.layers, states))  # noqa: B023
            x, (state, names, aux) = repeat(x, (layers, state))
            new.append(state)
            total = add_aux(total, aux)
        states = None if states is None else jax.tree.map(lambda *repeats: repeats, *new)
        return x, states, bus if names is None else names, total


def _is_tuple(node: Any) -> bool:
    return isinstance(node, tuple) and len(node) > 0 and not hasattr(node, "_fields")


def _run(layers: nnx.List, states: list[State] | None, x: jax.Array, place: Place, bus: Bus, implementation: str, cut: int | None):
    """The layers of one repeat; `states` has one entry a layer, None for whole rows."""
    new: list[State] = []
    total: Aux = {}
    for i, layer in enumerate(layers):
        x, state, bus, aux = layer(x, place, None if states is None else states[i], bus, implementation, last=i == cut)
        place = place.last if i == cut else place
        new.append(state)
        total = add_aux(total, aux)
    return x, None if states is None else new, bus, total
