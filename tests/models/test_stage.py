"""Names that a stage exports reach every stage after it, scanned or unrolled."""

import jax
import jax.numpy as jnp
import numpy as np

from mnemax.configs.load import load_model
from mnemax.configs.schema import ModelConfig
from mnemax.models.params import bind, unstack, weights


def test_names_pass_through_repeated_stages():
    fields = load_model("mqa").model_dump()
    layer = fields["stages"][0]["layers"][0]
    writer, reader = ({**layer, "attention": {**layer["attention"], role: "kv"}} for role in ("write", "read"))
    stages = [{"layers": [writer]}, {"repeat": 3, "layers": [reader]}, {"repeat": 2, "layers": [layer]}, {"layers": [reader]}]
    config = ModelConfig.model_validate(fields | {"stages": stages})
    described, rng = weights(config), np.random.default_rng(0)
    params = {name: jnp.asarray(0.2 * rng.standard_normal(w.shape), jnp.float32) for name, w in described.items()}
    tokens = rng.integers(0, config.vocab_size, (2, 12))
    run = jax.jit(lambda params, tokens: bind(config, params)(tokens)[0])
    np.testing.assert_allclose(run(unstack(params, described), tokens), run(params, tokens), atol=1e-4)
