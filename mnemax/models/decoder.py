"""The decoder: embedding, stages, final norm, unembedding."""

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from mnemax.layers.feedforward import Aux, add_aux
from mnemax.layers.linear import linear
from mnemax.layers.memories import Place, State
from mnemax.layers.norm import RMSNorm
from mnemax.layers.param import Init
from mnemax.models.stage import Stage
from mnemax.sharding import rows, shard, use

if TYPE_CHECKING:
    from mnemax.configs.schema import ModelConfig


@partial(jax.tree_util.register_dataclass, data_fields=["length", "stages"], meta_fields=[])
@dataclass(frozen=True)
class DecodeState:
    """All that decoding remembers.

    Attributes:
        length: tokens of each row so far, int32 scalar (rows are padded on the left to the same length).
        stages: for each stage, for each of its layers, the memory's state stacked over repeats.
    """

    length: Int[Array, ""]
    stages: list[list[State]]


class Decoder(nnx.Module):
    """A language model. Training, prefill and decoding are this one call at different lengths."""

    def __init__(self, config: "ModelConfig", key: jax.Array):
        self.config = config
        init = Init(config, jax.random.fold_in(key, 0))
        V, D = config.vocab_size, config.width
        self.embedding = init.matrix((V, D), ("vocab", "embed"), std=config.init.std)
        self.stages = nnx.List([Stage(stage, config, jax.random.fold_in(key, i + 1)) for i, stage in enumerate(config.stages)])
        self.norm = RMSNorm((D,), ("residual",), config.norm, init)
        self.unembedding = None if config.tie_embeddings else init.matrix((D, V), ("embed", "vocab"), std=config.init.readout_std)

    def hidden(
        self,
        tokens: Int[Array, "B T"],
        positions: Int[Array, "B T"] | None = None,
        state: DecodeState | None = None,
        *,
        last: bool = False,
        remat: str = "none",
        implementation: str = "auto",
    ) -> tuple[Float[Array, "B T_or_1 D"], DecodeState | None, Aux]:
        """The final normed residual stream, the new state, and auxiliary scalars summed over layers.

        Args:
            positions: position of each token in its document; default: the row is one document.
            state: what was written before; None: the tokens are whole rows.
            last: only the last token's output is wanted, [B, 1, D]. Layers past the last that remembers anything then see no other
                token, which is YOCO's early exit of prefill (arXiv 2405.05254, section 2.3). Needs a state.
        """
        assert state is not None or not last  # of whole rows, keys are the queries' own tokens
        before = jnp.int32(0) if state is None else state.length
        index = before + jnp.arange(tokens.shape[1], dtype=jnp.int32)
        if positions is None:
            positions = jnp.broadcast_to(index, tokens.shape)
        place = Place(index, shard(positions, "batch", "seq"))
        x, bus, total = self.embed(tokens), {}, {}
        states: list[Any] = []
        final, layer = self.config.last_kept if last else (None, None)
        for i, stage in enumerate(self.stages):
            given = None if state is None else state.stages[i]
            cut = layer if i == final else None
            x, new, bus, aux = stage(x, place, given, bus, remat=remat, implementation=implementation, cut=cut)
            states.append(new)
            total = add_aux(total, aux)
            if i == final:
                x, place = x[:, -1:], place.last
        after = None if state is None else DecodeState(before + tokens.shape[1], states)
        return self.norm(x), after, total

    def embed(self, tokens: Int[Array, "B T"]) -> Float[Array, "B T D"]:
        """Scaled embeddings in the activation dtype."""
        dtype, scale = jnp.dtype(self.config.dtype), self.config.embed_scale
        # Gathered before the cast: a cast of the whole table would cost more than the rows.
        x = rows(use(self.embedding, jnp.float32), tokens, ("batch", "seq", "residual")).astype(dtype)
        factor = self.config.width**0.5 if scale == "sqrt_width" else scale
        return x if factor == 1.0 else x * jnp.asarray(factor, dtype)

    def readout(self) -> tuple[Float[Array, "D V"], float, float | None]:
        """The unembedding matrix in the activation dtype, the scale of its logits and their soft cap."""
        dtype = jnp.dtype(self.config.dtype)
        matrix = use(self.embedding, dtype).T if self.unembedding is None else use(self.unembedding, dtype)
        return matrix, self.config.logit_scale, self.config.logit_softcap

    def logits(self, x: Float[Array, "B T D"]) -> Float[Array, "B T V"]:
        """softcap(scale x W) in float32."""
        untied = self.unembedding
        equation, weight = ("btd,vd->btv", self.embedding) if untied is None else ("btd,dv->btv", untied)
        z = linear(equation, x, weight, axes=("batch", "seq", "vocab"), dtype=jnp.float32) * self.config.logit_scale
        softcap = self.config.logit_softcap
        return z if softcap is None else softcap * jnp.tanh(z / softcap)

    def __call__(
        self, tokens: Int[Array, "B T"], positions: Int[Array, "B T"] | None = None, state: DecodeState | None = None, **options
    ) -> tuple[Float[Array, "B T V"], DecodeState | None]:
        """Logits in float32 and the new state; arguments as `hidden`."""
        x, state, _ = self.hidden(tokens, positions, state, **options)
        return self.logits(x), state

    def init_state(self, batch: int, capacity: int) -> DecodeState:
        """The empty state of `batch` rows of at most `capacity` tokens."""
        return DecodeState(jnp.int32(0), [stage.init_state(batch, capacity) for stage in self.stages])
