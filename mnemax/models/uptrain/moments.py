"""What the layers of a model attend over: the second moments of their inputs, from the norms alone or from data as well."""

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from mnemax.layers.memories import Place
from mnemax.models.params import Params, bind
from mnemax.models.uptrain.layers import Unfit, Weights, unrolled

if TYPE_CHECKING:
    from mnemax.configs.schema import ModelConfig

type Moments = list[Float[np.ndarray, "D D"]]
"""E[x x^T] of each layer's attention input x."""


def moments(config: "ModelConfig", params: Params, batches: Iterable[dict[str, np.ndarray]] = ()) -> Moments:
    """Over the tokens of some batches, to which D tokens are added as the norm alone lets expect them.

    Those entries of a norm's output have the mean square of its scale and are independent; without batches they are all there is.

    Raises:
        Unfit: there are batches, and a stage runs in passes.
    """
    count = config.width
    sums = [count * _expected(config, layer) for layer in unrolled(config, params)[1]]
    for batch in batches:
        count += batch["inputs"].size
        found = _sums(config, params, batch["inputs"], batch["positions"])
        sums = [total + np.asarray(more, np.float64) for total, more in zip(sums, found, strict=True)]
    return [total / count for total in sums]


def _expected(config: "ModelConfig", layer: Weights) -> Float[np.ndarray, "D D"]:
    scale = config.norm.offset + layer.get("attention_norm.scale", np.ones(config.width) - config.norm.offset)
    return np.diag(np.square(scale, dtype=np.float64))


@partial(jax.jit, static_argnums=0)
def _sums(config: "ModelConfig", params: Params, tokens: Int[Array, "B T"], positions: Int[Array, "B T"]) -> list[jax.Array]:
    model = bind(config, params)
    place, x, bus = Place(jnp.arange(tokens.shape[1], dtype=jnp.int32), positions), model.embed(tokens), {}
    sums = []
    for stage in model.stages:
        if stage.config.passes is not None:
            raise Unfit(
                f"inputs of layers that run in passes ({stage.config.passes}) are not looked at; --calibrate 0 does without"
            )
        for repeat in range(stage.config.repeat):
            for block in jax.tree.map(lambda stacked: stacked[repeat], stage.layers):  # noqa: B023
                read = x if block.attention_norm is None else block.attention_norm(x)
                sums.append(jnp.einsum("btd,bte->de", read, read, preferred_element_type=jnp.float32))
                x, _, bus, _ = block(x, place, None, bus, "auto")
    return sums
