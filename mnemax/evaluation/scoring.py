"""What a model says at every position of whole rows, the right tokens being given before it (teacher forcing)."""

import functools
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Integer

from mnemax.models.params import bind

if TYPE_CHECKING:
    from mnemax.configs.schema import ModelConfig
    from mnemax.models.folder import Model

CHUNK = 128  # positions of each row whose logits exist at one time


class Score(NamedTuple):
    """Of one row: the loss of each target in nats, and whether its logit is above every other one."""

    nll: Float[np.ndarray, " n"]
    right: Bool[np.ndarray, " n"]


def scores(
    model: "Model", rows: Iterable[tuple[Integer[np.ndarray, " n"], Integer[np.ndarray, " n"]]], length: int, batch: int
) -> Iterator[Score]:
    """The score of each row of (inputs, targets), in order; each row is one document of at most `length` tokens."""
    score = _compiled(model.config)
    waiting: list[tuple[np.ndarray, np.ndarray]] = []

    def flush() -> Iterator[Score]:
        inputs, targets = np.zeros((2, batch, length), np.int32)
        for i, (given, wanted) in enumerate(waiting):
            inputs[i, : len(given)], targets[i, : len(wanted)] = given, wanted
        nll, right = map(np.asarray, score(model.params, inputs, targets))
        for i, (given, _) in enumerate(waiting):
            yield Score(nll[i, : len(given)], right[i, : len(given)])
        waiting.clear()

    for row in rows:
        waiting.append(row)
        if len(waiting) == batch:
            yield from flush()
    if waiting:
        yield from flush()


@functools.lru_cache(maxsize=8)
def _compiled(config: "ModelConfig"):
    """One jitted function a model, so that calls with the same shapes share a program."""
    return jax.jit(functools.partial(_score, config))


def _score(config, params, inputs, targets):
    model = bind(config, params)
    x = model.hidden(inputs)[0]
    B, T, D = x.shape
    size = min(CHUNK, T)
    count = -(-T // size)
    x, targets = (jnp.pad(a, ((0, 0), (0, count * size - T), *((0, 0),) * (a.ndim - 2))) for a in (x, targets))

    def chunk(part):
        x, targets = part
        logits = model.logits(x)
        hit = jnp.arange(logits.shape[-1]) == targets[..., None]
        target = jnp.sum(jnp.where(hit, logits, 0.0), axis=-1)
        others = jnp.max(jnp.where(hit, -jnp.inf, logits), axis=-1)
        return jax.nn.logsumexp(logits, axis=-1) - target, target > others

    parts = jnp.moveaxis(x.reshape(B, count, size, D), 1, 0), jnp.moveaxis(targets.reshape(B, count, size), 1, 0)
    nll, right = jax.lax.map(chunk, parts)
    return tuple(jnp.moveaxis(a, 0, 1).reshape(B, count * size)[:, :T] for a in (nll, right))
