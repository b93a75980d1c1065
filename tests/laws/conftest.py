"""Every shipped architecture, built once a session: a law takes the fixture `architecture` and holds for all of them."""

from dataclasses import dataclass
from functools import cached_property, partial

import jax
import numpy as np
import pytest

from mnemax.configs.load import load_model, shipped
from mnemax.configs.schema import ModelConfig
from mnemax.data.config import DataConfig
from mnemax.models.decoder import DecodeState
from mnemax.models.params import Params, bind, weights

BATCH, LENGTH = 2, 24

# Compiling for eight devices takes longest of all laws: by default a few that differ most, the others with `-m slow`.
SHARDED = {"bounded_h2o", "cla", "gla", "key_driven", "kvm", "mla", "yoco"}

# Models that another one differs from in a field or two: by default only the laws that compile little.
VARIANTS = {
    *("bounded_key_norm", "gemma2", "gemma4_keys", "kvm_power", "mha", "mqa", "nope", "olmo2", "partial_rope", "quantized_int2"),
    *("qwen2", "qwen3", "relu2", "shared_kv_mqa", "shared_qk", "shared_qkv"),
}
# Retentions that no shipped model has, as the choice of one that differs in nothing else.
ALONE = {f"bounded_{kind}": kind for kind in ("keydiff", "random", "streaming", "tova")}
VARIANTS |= ALONE.keys()
# Those that no law can ask: decoding token by token is another thing than a whole row, by what they are (their pages say so).
OF_WHOLE_PROMPTS = {"oracle", "snapkv"}
LONG_LAWS = {"test_decoding.py", "test_learning.py", "test_resume.py", "test_generation.py"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        name = item.callspec.params.get("architecture") if hasattr(item, "callspec") else None
        if name is None:
            continue
        not_sharded = item.path.name == "test_sharding.py" and name not in SHARDED
        if not_sharded or (item.path.name in LONG_LAWS and name in VARIANTS):
            item.add_marker(pytest.mark.slow)


@dataclass(frozen=True)
class Architecture:
    """A tiny model whose every weight matters: matrices that keep the scale of their input, vectors away from 0 and 1."""

    name: str
    config: ModelConfig

    @cached_property
    def params(self) -> Params:
        rng, values = np.random.default_rng(0), {}
        for name, weight in weights(self.config).items():
            inputs = weight.shape[int(weight.stacked) :][: weight.contract]
            noise = rng.standard_normal(weight.shape)
            value = noise / np.sqrt(np.prod(inputs)) if inputs else 1 + 0.3 * noise
            values[name] = jax.numpy.asarray(noise if name == "embedding" else value, jax.numpy.float32)
        return values

    @cached_property
    def logits(self):
        """`logits(params, tokens, positions)` of whole rows, jitted; `implementation=` is that of `attend`."""
        run = lambda params, *rows, **options: bind(self.config, params)(*rows, **options)[0]  # noqa: E731
        return partial(jax.jit(run, static_argnames="implementation"), self.params)

    @cached_property
    def decode(self):
        """`decode(tokens, positions, state) -> (logits, state)`, jitted: a chunk of any length."""
        return partial(jax.jit(lambda params, *rows: bind(self.config, params)(*rows)), self.params)

    def init_state(self, batch: int, capacity: int) -> DecodeState:
        return bind(self.config, self.params).init_state(batch, capacity)

    def tokens(self, seed: int = 0) -> np.ndarray:
        """[BATCH, LENGTH]."""
        return np.random.default_rng(seed).integers(0, self.config.vocab_size, (BATCH, LENGTH), np.int32)

    def data(self, **fields) -> DataConfig:
        return DataConfig(sequence_length=LENGTH, **fields)


@pytest.fixture(scope="session", params=[*shipped("models"), *ALONE])
def architecture(request: pytest.FixtureRequest) -> Architecture:
    name, overrides = request.param, ["dtype=float32"]
    if name in ALONE:
        overrides.append(f"layer.attention.retention={{kind: {ALONE[name]}}}")
    return Architecture(name, load_model("bounded_key_norm" if name in ALONE else name, overrides))


def positions(*rows: tuple[int, ...]) -> np.ndarray:
    """Positions of rows whose documents have these lengths."""
    return np.stack([np.concatenate([np.arange(length) for length in row]) for row in rows]).astype(np.int32)


@pytest.fixture(
    params={
        "one document": positions((24,), (24,)),
        "packed": positions((9, 15), (1, 13, 10)),
        "padded on the left": positions((24,), (*(1,) * 6, 18)),
    }.items(),
    ids=lambda item: item[0],
)
def places(request: pytest.FixtureRequest) -> np.ndarray:
    """Positions of the tokens of a batch; padding is a row of documents of one token each."""
    return request.param[1]
