"""The tokens that greedy decoding of unequal prompts gives are the likeliest ones by the logits of whole rows."""

import numpy as np

from mnemax.models.generate import Generator, Sampling

NEW = 6


def test_greedy_decoding(architecture):
    tokens = architecture.tokens()
    prompts = [tokens[0, :18].tolist(), tokens[1, :5].tolist()]
    rows = Generator(architecture.config, architecture.params, Sampling(temperature=0.0)).generate(prompts, NEW)
    for i, (prompt, row) in enumerate(zip(prompts, rows, strict=True)):
        tokens[i, : len(prompt) + NEW] = prompt + row
    places = np.tile(np.arange(tokens.shape[1], dtype=np.int32), (len(tokens), 1))
    logits = np.asarray(architecture.logits(tokens, places))
    for i, (prompt, row) in enumerate(zip(prompts, rows, strict=True)):
        chosen = logits[i, len(prompt) - 1 : len(prompt) - 1 + NEW]
        np.testing.assert_allclose(np.take_along_axis(chosen, np.array(row)[:, None], 1)[:, 0], chosen.max(axis=-1), atol=1e-4)
