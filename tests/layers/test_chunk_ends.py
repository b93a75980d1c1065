"""Chunk ends and latest tokens against a list that forgets; Attamba's chunks against its model run on each chunk alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mnemax.configs.load import load_model
from mnemax.errors import UserError
from mnemax.layers.attention import Attention
from mnemax.layers.memories import Place
from mnemax.layers.memories.chunk_ends import ChunkEnds, ChunkEndsConfig
from mnemax.layers.param import Init
from mnemax.models.params import weights

SPEC = {"k": jax.ShapeDtypeStruct((1, 1), jnp.dtype("float32"))}


@settings(max_examples=25, deadline=None)
@given(
    chunk=st.integers(1, 6),
    offset=st.integers(0, 5),
    lead=st.integers(0, 4),
    calls=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    restarts=st.sets(st.integers(1, 30), max_size=3),
)
def test_what_is_kept_and_seen(chunk, offset, lead, calls, restarts):
    """Token i writes the value i + 1. Every token sees exactly what the brute-force list says."""
    offset, total = offset % chunk, sum(calls)
    starts = np.maximum.accumulate([i if i in restarts else 0 for i in range(total)])
    config = ChunkEndsConfig(chunk=chunk, lead=lead, offset=offset)
    memory, at = ChunkEnds(config), 0
    state = memory.init(1, total, SPEC)
    for length in calls:
        index = jnp.arange(at, at + length, dtype=jnp.int32)
        place = Place(index, jnp.asarray(index - starts[at : at + length])[None])
        state, view = memory.update(state, {"k": (index + 1.0)[None, :, None, None]}, place, None)
        assert sum(leaf.nbytes for leaf in jax.tree.leaves(state)) == config.cache_bytes(1, total, SPEC)
        for query in range(at, at + length):
            assert seen(view, query, starts[query]) == kept(query, starts[query], config)
        at += length


def kept(query, start, config):
    document = range(start, query + 1)
    end = lambda i: i == start or (i - start + config.offset) % config.chunk == config.chunk - 1  # noqa: E731
    return [i for i in document if end(i) or query - i <= config.lead]


def seen(view, query, start):
    """Indices in the slots that the mask shows, each with its own value, and none twice."""
    index, values, evict_at = (np.asarray(a)[0] for a in (view.index, view.entries["k"][..., 0, 0], view.evict_at[..., 0]))
    shown = (index >= start) & (index <= query) & (query < evict_at)
    assert (values[shown] == index[shown] + 1).all()
    return sorted(index[shown].tolist())


def test_keys_have_read_their_chunk_and_no_more():
    """Entries of a row are those of its chunks run as rows of their own, the residual and the offset of the first included."""
    model = load_model("attamba")
    config = model.layers[1].attention  # chunks of 4, the first 2 tokens short
    attention = Attention(config, model, Init(model, jax.random.key(0)))
    x = jax.random.normal(jax.random.key(1), (1, 10, 64))

    def values(x):
        index = jnp.arange(x.shape[1])
        return attention.projection(x, Place(index, index[None]), None)[1]["v"]

    # A chunk alone begins at position 0, so it is given the offset that the first chunk has: its two tokens, or a whole chunk.
    whole = values(x)
    np.testing.assert_allclose(whole[:, :2], values(x[:, :2]), atol=1e-6)
    changed = values(x.at[:, 2].add(1.0))
    assert np.allclose(whole[:, :2], changed[:, :2], atol=1e-6)
    assert (np.abs(whole - changed)[:, 2:6].max(axis=(0, 2, 3)) > 1e-4).all()
    np.testing.assert_allclose(whole[:, 6:], changed[:, 6:], atol=1e-6)


@pytest.mark.parametrize(("width", "words"), [(66, "not divisible by heads"), (60, "a head is 15 wide")])
def test_heads_that_the_width_does_not_fit(width, words):
    with pytest.raises(UserError, match=words):
        weights(load_model("attamba", [f"width={width}"]))
