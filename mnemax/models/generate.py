"""Decoding: a fixed-shape jitted prefill, then a jitted step a token, for a batch of prompts of unequal lengths."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from mnemax.configs.base import Config, Fraction, NonNegativeFloat, PositiveInt
from mnemax.errors import UserError
from mnemax.evaluation.accounting import live_bytes
from mnemax.models.decoder import DecodeState
from mnemax.models.params import Params, bind, unstack, weights

if TYPE_CHECKING:
    from mnemax.configs.schema import ModelConfig

PREFILL_MULTIPLE = 32  # prompts are padded to a multiple of this, so that few lengths are compiled


class Sampling(Config):
    """How the next token is drawn. Filters apply in the order of the fields."""

    temperature: NonNegativeFloat = 1.0
    """0: greedy."""
    top_k: PositiveInt | None = None
    top_p: Fraction = 1.0
    """Smallest set of tokens whose probabilities reach this (Holtzman et al. 2019, arXiv 1904.09751)."""
    min_p: Fraction = 0.0
    """Tokens at least this likely relative to the likeliest (Nguyen et al. 2024, arXiv 2407.01082)."""


def sample(logits: Float[Array, "B V"], key: jax.Array, sampling: Sampling) -> Int[Array, " B"]:
    """One token a row, int32."""
    if sampling.temperature == 0:
        return jnp.argmax(logits, axis=-1).astype(jnp.int32)
    return jax.random.categorical(key, filter_logits(logits / sampling.temperature, sampling), axis=-1).astype(jnp.int32)


def filter_logits(logits: Float[Array, "B V"], sampling: Sampling) -> Float[Array, "B V"]:
    """-inf for every token that top-k, top-p or min-p excludes; the likeliest always stays."""
    if sampling.top_k is not None and sampling.top_k < logits.shape[-1]:
        kth = jax.lax.top_k(logits, sampling.top_k)[0][:, -1:]
        logits = jnp.where(logits < kth, -jnp.inf, logits)
    if sampling.top_p < 1:
        ordered = jnp.sort(logits, axis=-1, descending=True)
        before = jnp.cumsum(jax.nn.softmax(ordered, axis=-1), axis=-1) - jax.nn.softmax(ordered, axis=-1)
        kept = jnp.where(before < sampling.top_p, ordered, jnp.inf).at[:, 0].set(ordered[:, 0])
        logits = jnp.where(logits < jnp.min(kept, axis=-1, keepdims=True), -jnp.inf, logits)
    if sampling.min_p > 0:
        p = jax.nn.softmax(logits, axis=-1)
        logits = jnp.where(p < sampling.min_p * jnp.max(p, axis=-1, keepdims=True), -jnp.inf, logits)
    return logits


@dataclass
class Speed:
    """What a generation took, filled in as it goes: tokens, and seconds after compilation."""

    prompt_tokens: int = 0
    new_tokens: int = 0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    state_bytes: int = 0


@dataclass
class Generator:
    """A model ready to decode: its matrices are cast to the activation dtype once."""

    config: "ModelConfig"
    params: Params
    sampling: Sampling = field(default_factory=Sampling)

    def __post_init__(self):
        dtype = jnp.dtype(self.config.dtype)
        described = weights(self.config)
        cast = {n: jnp.asarray(p, dtype if described[n].contract else None) for n, p in self.params.items()}
        self.params = unstack(cast, described)
        self.prefill = jax.jit(partial(_prefill, self.config, self.sampling), donate_argnums=1)
        self.step = jax.jit(partial(_step, self.config, self.sampling), donate_argnums=1)

    def stream(
        self,
        prompts: Sequence[Sequence[int]],
        max_new: int,
        *,
        stop: Sequence[int] = (),
        seed: int = 0,
        speed: Speed | None = None,
    ) -> Iterator[list[int | None]]:
        """Yields the next token of every row, None for a row that has ended, until all have ended or have `max_new`.

        A stop token is yielded and ends its row.

        Raises:
            UserError: a prompt is empty, or prompt and new tokens exceed the model's `max_length`.
        """
        tokens, positions = pad_prompts(prompts)
        longest = max(map(len, prompts))
        if longest + max_new > self.config.max_length:
            raise UserError(
                f"A prompt of {longest} tokens and {max_new} new ones exceed model.max_length ({self.config.max_length})."
            )
        speed = Speed() if speed is None else speed
        state = bind(self.config, self.params).init_state(len(prompts), tokens.shape[1] + max_new)
        speed.state_bytes = live_bytes(state)
        speed.prompt_tokens = sum(map(len, prompts))
        key = jax.random.key(seed)
        begin = time.perf_counter()
        token, state = self.prefill(self.params, state, tokens, positions, jax.random.fold_in(key, 0))
        next_position = jnp.asarray([len(prompt) for prompt in prompts], jnp.int32)
        ended = np.zeros(len(prompts), bool)
        for i in range(max_new):
            following = None
            if i + 1 < max_new:  # dispatched before the present token is fetched, so that the device never waits for the host
                following, state = self.step(self.params, state, token, next_position + i, jax.random.fold_in(key, i + 1))
            values = np.asarray(token)
            now = time.perf_counter()
            if i == 0:
                speed.prefill_seconds, begin = now - begin, now
            else:
                speed.decode_seconds, speed.new_tokens = now - begin, speed.new_tokens + len(prompts)
            yield [None if done else int(value) for value, done in zip(values, ended, strict=True)]
            ended |= np.isin(values, stop)
            if ended.all():
                return
            token = following

    def generate(self, prompts: Sequence[Sequence[int]], max_new: int, **options) -> list[list[int]]:
        """The new tokens of every row; arguments as `stream`."""
        rows: list[list[int]] = [[] for _ in prompts]
        for tokens in self.stream(prompts, max_new, **options):
            for row, token in zip(rows, tokens, strict=True):
                if token is not None:
                    row.append(token)
        return rows


def pad_prompts(prompts: Sequence[Sequence[int]]) -> tuple[Int[np.ndarray, "B T"], Int[np.ndarray, "B T"]]:
    """Prompts padded on the left to one length, and positions. Every padding token is a document of its own, so none is ever seen.

    Raises:
        UserError: there is no prompt, or one is empty.
    """
    if not prompts or not all(len(prompt) for prompt in prompts):
        raise UserError("A prompt needs at least one token.")
    length = -(-max(map(len, prompts)) // PREFILL_MULTIPLE) * PREFILL_MULTIPLE
    tokens, positions = np.zeros((2, len(prompts), length), np.int32)
    for row, prompt in enumerate(prompts):
        tokens[row, length - len(prompt) :] = prompt
        positions[row, length - len(prompt) :] = np.arange(len(prompt))
    return tokens, positions


def _prefill(config, sampling, params: Params, state: DecodeState, tokens, positions, key):
    model = bind(config, params)
    x, after, _ = model.hidden(tokens, positions, state, last=True)
    return sample(model.logits(x)[:, 0], key, sampling), after


def _step(config, sampling, params: Params, state: DecodeState, token, position, key):
    return _prefill(config, sampling, params, state, token[:, None], position[:, None], key)
