"""Stop tokens, counts and refusals of batched decoding; its tokens are held to whole rows in tests/laws."""

import jax
import numpy as np
import pytest

from mnemax.configs.load import load_model
from mnemax.errors import UserError
from mnemax.models.generate import Generator, Sampling, Speed
from mnemax.models.params import weights


@pytest.fixture(scope="module")
def generator():
    config, rng = load_model("window"), np.random.default_rng(0)
    params = {name: jax.numpy.asarray(0.2 * rng.standard_normal(w.shape), jax.numpy.float32) for name, w in weights(config).items()}
    return Generator(config, params, Sampling(temperature=0.0))


PROMPTS = [[5, 6, 7], list(range(33, 75)), [9]]


def test_stop_tokens_end_their_row_alone(generator):
    rows = generator.generate(PROMPTS, 12)
    stop = rows[0][4]
    stopped = generator.generate(PROMPTS, 12, stop=[stop])
    for row, short in zip(rows, stopped, strict=True):
        assert short == (row[: row.index(stop) + 1] if stop in row else row)


def test_speed_counts_tokens_and_bytes(generator):
    speed = Speed()
    list(generator.stream(PROMPTS, 3, speed=speed))
    assert speed.prompt_tokens == 3 + 42 + 1
    assert speed.new_tokens == 2 * len(PROMPTS)  # those of decode steps: the first of each row is prefill's
    assert speed.state_bytes > 0


@pytest.mark.parametrize(("prompts", "new", "sentence"), [
    ([], 3, "A prompt needs at least one token."),
    ([[1], []], 3, "A prompt needs at least one token."),
    ([[1] * 250], 7, r"A prompt of 250 tokens and 7 new ones exceed model.max_length \(256\)."),
])  # fmt: skip
def test_refusals(generator, prompts, new, sentence):
    with pytest.raises(UserError, match=sentence):
        generator.generate(prompts, new)
