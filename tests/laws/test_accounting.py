"""Bytes and parameters by formula are those of the live arrays."""

from functools import partial

import jax
import pytest

from mnemax.evaluation import accounting
from mnemax.models.decoder import Decoder
from mnemax.models.params import init_params


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("batch", "capacity"), [(1, 1), (2, 5), (3, 8), (2, 200)])
def test_state_bytes(architecture, batch, capacity, dtype):
    config = architecture.config.model_copy(update={"dtype": dtype})
    state = jax.eval_shape(lambda key: Decoder(config, key).init_state(batch, capacity), jax.random.key(0))
    assert accounting.state_bytes(config, batch, capacity) == sum(
        leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state)
    )


def test_state_bytes_of_a_written_state(architecture, places):
    """Shapes and dtypes of what a call gives, which `eval_shape` knows without compiling it."""
    tokens, state = architecture.tokens(), architecture.init_state(2, 27)
    for chunk in (slice(0, 17), slice(17, 24)):
        state = jax.eval_shape(architecture.decode, tokens[:, chunk], places[:, chunk], state)[1]
        assert accounting.state_bytes(architecture.config, 2, 27) == sum(
            leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state)
        )


def test_parameters(architecture):
    params = jax.eval_shape(partial(init_params, architecture.config), jax.random.key(0))
    assert accounting.parameters(architecture.config) == sum(leaf.size for leaf in jax.tree.leaves(params))
