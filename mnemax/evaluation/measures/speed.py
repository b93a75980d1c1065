"""How fast a model reads and writes, and what it holds meanwhile."""

import resource
import sys
import time
from typing import Annotated, Literal, override

import jax
import numpy as np
from pydantic import Field

from mnemax.configs.base import NonNegativeInt, PositiveInt
from mnemax.configs.schema import RunConfig
from mnemax.data.config import DataConfig
from mnemax.errors import UserError
from mnemax.evaluation.measures import MeasureConfig, Progress, Result, Subject
from mnemax.models.folder import Model
from mnemax.models.generate import Generator, Sampling, Speed
from mnemax.training.step import init_state, make_train_step


class SpeedConfig(MeasureConfig):
    """Tokens a second of prefill, decoding and training, and peak memory, on random tokens; the median of `repeats`."""

    kind: Literal["speed"] = "speed"
    prompt: PositiveInt = 128
    """Tokens of each prompt."""
    new: Annotated[int, Field(ge=2)] = 32
    """Tokens generated, the first of which is the prefill's."""
    batch: PositiveInt = 1
    repeats: PositiveInt = 3
    train_length: NonNegativeInt = 0
    """Tokens a row of training steps that are timed too; 0: none."""
    train_batch: PositiveInt = 8

    @override
    def __call__(self, subject: Subject, progress: Progress) -> Result:
        config = subject.model.config
        for length, what in ((self.prompt + self.new, "prompt + new"), (self.train_length, "train_length")):
            if length > config.max_length:
                raise UserError(f"The measure 'speed' has {what} {length}, more than model.max_length ({config.max_length}).")
        rounds = 2 * self.repeats if self.train_length else self.repeats
        decode = _decoding(subject.model, self, lambda done: progress(done, rounds))
        if not self.train_length:
            return decode
        trained = _training(subject.model, self, lambda done: progress(self.repeats + done, rounds))
        return decode | {"train_tokens_per_second": trained, "peak_bytes": peak_bytes()}


def _decoding(model: Model, config: SpeedConfig, progress) -> Result:
    rng = np.random.default_rng(0)
    prompts = rng.integers(model.config.vocab_size, size=(config.batch, config.prompt)).tolist()
    generator = Generator(model.config, model.params, Sampling(temperature=0))
    generator.generate(prompts, min(2, config.new))  # compiles
    speeds = []
    for done in range(1, config.repeats + 1):
        speeds.append(speed := Speed())
        generator.generate(prompts, config.new, speed=speed)
        progress(done)
    return {
        "prefill_tokens_per_second": float(np.median([speed.prompt_tokens / speed.prefill_seconds for speed in speeds])),
        "decode_tokens_per_second": float(np.median([speed.new_tokens / speed.decode_seconds for speed in speeds])),
        "state_bytes": speeds[0].state_bytes,
        "peak_bytes": peak_bytes(),
    }


def _training(model: Model, config: SpeedConfig, progress) -> float:
    """Tokens a second of the training step with its defaults, from the model's own parameters' shapes."""
    data = DataConfig(sequence_length=config.train_length, batch_size=config.train_batch)
    run = RunConfig(name="speed", steps=config.repeats + 1, model=model.config, data=data)
    shape = (1, config.train_batch, config.train_length)
    tokens = np.random.default_rng(0).integers(model.config.vocab_size, size=shape, dtype=np.int32)
    positions = np.broadcast_to(np.arange(config.train_length, dtype=np.int32), shape)
    batch = {"inputs": tokens, "targets": tokens, "positions": positions, "weights": np.ones(shape, np.float32)}
    state, step = init_state(run), make_train_step(run)
    seconds = []
    for done in range(config.repeats + 1):
        begin = time.perf_counter()
        state, _ = jax.block_until_ready(step(state, batch))
        seconds.append(time.perf_counter() - begin)
        progress(done)
    return tokens.size / float(np.median(seconds[1:]))  # the first one compiles


def peak_bytes() -> int:
    """The most memory that the first device, or on a CPU this process, has held so far."""
    statistics = jax.devices()[0].memory_stats() or {}
    if "peak_bytes_in_use" in statistics:
        return statistics["peak_bytes_in_use"]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak
