"""Tiny models to measure."""

import jax.numpy as jnp
import numpy as np

from mnemax.configs.load import load_model
from mnemax.data.config import DataConfig
from mnemax.data.tokenizers import Tokenizer
from mnemax.evaluation.measures import Subject
from mnemax.models.folder import Model
from mnemax.models.params import weights


def subject(tokenizer: Tokenizer | None, data: DataConfig | None = None, max_length: int = 256) -> Subject:
    """One layer of random weights; without a tokenizer, 256 symbols."""
    size = tokenizer.vocab_size if tokenizer else 256
    config = load_model("llama", [f"max_length={max_length}", f"vocab_size={size}", "width=16", "stages=[{layers: [{}]}]"])
    rng = np.random.default_rng(0)
    params = {name: jnp.asarray(0.2 * rng.standard_normal(w.shape), jnp.float32) for name, w in weights(config).items()}
    return Subject(Model(config, params, tokenizer, 0), data, batch=4)
