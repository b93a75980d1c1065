"""The ring of a window against a list that forgets."""

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from mnemax.layers.memories import Place
from mnemax.layers.memories.window import Window

SPEC = {"k": jax.ShapeDtypeStruct((1,), jnp.dtype("float32"))}


@settings(max_examples=25, deadline=None)
@given(
    size=st.integers(1, 6),
    sinks=st.integers(0, 3),
    chunks=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    restarts=st.sets(st.integers(1, 30), max_size=3),
)
def test_what_is_kept_and_seen(size, sinks, chunks, restarts):
    """Token i writes the value i + 1. After each chunk its last token sees exactly what the brute-force list says."""
    total = sum(chunks)
    starts = np.maximum.accumulate([i if i in restarts else 0 for i in range(total)])
    window = Window(size, sinks)
    state = window.init(1, total, SPEC)
    slots = sum(leaf.size for leaf in jax.tree.leaves(state["entries"]))
    assert slots == sinks + min(size, total)
    at = 0
    for length in chunks:
        index = jnp.arange(at, at + length, dtype=jnp.int32)
        place = Place(index, jnp.asarray(index - starts[at : at + length])[None])
        state, view = window.update(state, {"k": (index + 1.0)[None, :, None]}, place, None)
        for query in range(at, at + length):
            assert seen(view, query, starts[query]) == remembered(query, starts[query], size, sinks)
        at += length


def remembered(query, start, size, sinks):
    document = list(range(start, query + 1))
    return sorted(set(document[:sinks] + document[-size:]))


def seen(view, query, start):
    """Indices in the slots that the mask shows, each with its own value, and none twice."""
    index, values = np.asarray(view.index)[0], np.asarray(view.entries["k"])[0, :, 0]
    shown = (index >= start) & (index <= query) & ((query - index < view.window) | (index - start < view.sinks))
    assert (values[shown] == index[shown] + 1).all()
    return sorted(index[shown].tolist())
