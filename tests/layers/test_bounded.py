"""Bounded slots against lists that forget, token after token in numpy."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mnemax.layers.memories import Place, Reader
from mnemax.layers.memories.bounded import Bounded, BoundedConfig
from mnemax.layers.memories.window import Window
from mnemax.layers.projections import Projection
from mnemax.layers.retention import Ranking
from mnemax.layers.retention.h2o import H2O
from mnemax.layers.retention.key_norm import KeyNorm
from mnemax.layers.retention.keydiff import KeyDiff
from mnemax.layers.retention.random import Random, uniform
from mnemax.layers.retention.tova import TOVA

BATCH, LENGTH, HEADS, KEYS, WIDTH = 2, 40, 4, 2, 8
SCALE = 0.5
STARTS = np.array([[0] * LENGTH, [0] * 13 + [13] * (LENGTH - 13)], np.int32)
RNG = np.random.default_rng(0)
Q = RNG.standard_normal((BATCH, LENGTH, HEADS, WIDTH)).astype(np.float32)
K, V = (RNG.standard_normal((BATCH, LENGTH, KEYS, WIDTH)).astype(np.float32) for _ in range(2))
NOISE = np.asarray(uniform(jnp.arange(LENGTH)[None, :, None], jnp.arange(KEYS, dtype=jnp.uint32), 3))[0]
CHUNKINGS = {"steps": (1,) * 40, "chunks": (11, 1, 1, 27)}


class Plain(Projection):
    """Entries are keys and values themselves."""

    def __init__(self):
        self.scale, self.softcap, self.reads = SCALE, None, False

    def expand(self, entries):
        return entries["k"], entries["v"]


class Fading(Ranking):
    """Ranks that change with age, and what is added to logits: as the learned gate, from given numbers."""

    def __call__(self, x, entry, place):
        return {"retention": -jnp.abs(entry["v"][..., 0])}

    def rank(self, candidates):
        return candidates.age * candidates.entries["retention"]

    def slope(self, entries):
        return entries["retention"]


@dataclass
class Remembered:
    """Row b, token i, key head n: what its query read, its output for each query head; and what is kept at the end."""

    read: dict
    out: np.ndarray
    kept: dict


def remember(policy: str, budget: int, sinks: int, recent: int) -> Remembered:
    """The definition, in lists."""
    read, out, kept = {}, np.zeros_like(Q), {}
    value = np.zeros((BATCH, LENGTH, KEYS))
    for b in range(BATCH):
        lists = [[] for _ in range(KEYS)]
        for i in range(LENGTH):
            start, weights = STARTS[b, i], np.zeros((LENGTH, KEYS))
            for n in range(KEYS):
                lists[n] = keep([j for j in lists[n] if j >= start] + [i], b, n, i, start, value, (policy, budget, sinks, recent))
                read[b, i, n] = tuple(lists[n])
                for h in range(n * HEADS // KEYS, (n + 1) * HEADS // KEYS):
                    logits = SCALE * K[b, lists[n], n] @ Q[b, i, h]
                    if policy == "fading":
                        logits = logits - np.abs(V[b, lists[n], n, 0]) * (i - np.array(lists[n]))
                    p = np.exp(logits - logits.max())
                    out[b, i, h] = p / p.sum() @ V[b, lists[n], n]
                    weights[lists[n], n] += p / p.sum()
            value[b] = {"h2o": value[b] + weights, "tova": np.tile(weights.mean(1)[:, None], KEYS)}.get(policy, value[b])
        kept |= {(b, n): tuple(lists[n]) for n in range(KEYS)}
    return Remembered(read, out, kept)


def keep(tokens, b, n, now, start, value, options):
    policy, budget, sinks, recent = options
    if len(tokens) <= budget:
        return tokens
    unit = K[b, tokens, n] / np.linalg.norm(K[b, tokens, n], axis=-1, keepdims=True)
    ranks = {
        "streaming": lambda j: 0,
        "random": lambda j: NOISE[j - start, n],
        "key_norm": lambda j: -np.linalg.norm(K[b, j, n]),
        "keydiff": lambda j: -unit[tokens.index(j)] @ unit.mean(0) / np.linalg.norm(unit.mean(0)),
        "fading": lambda j: -(now - j) * abs(V[b, j, n, 0]),
    }
    rank = ranks.get(policy, lambda j: value[b, j, n])
    goes = min((j for j in tokens if j - start >= sinks and now - j >= recent), key=lambda j: (rank(j), j))
    return [j for j in tokens if j != goes]


RETENTIONS = {
    "streaming": Ranking(),
    "random": Random(3),
    "key_norm": KeyNorm(),
    "keydiff": KeyDiff(),
    "fading": Fading(),
    "h2o": H2O(),
    "tova": TOVA(),
}


def call(memory, retention, state: Any = None, start=0, length=LENGTH) -> tuple[Any, Any, jax.Array]:
    """One call of a layer with the tokens from `start` on: new state, view, output."""
    at = lambda x: jax.lax.dynamic_slice_in_dim(jnp.asarray(x), start, length, axis=1)  # noqa: E731
    index = start + jnp.arange(length, dtype=jnp.int32)
    place = Place(index, index - at(STARTS))
    entry = {"k": at(K), "v": at(V)}
    entry |= retention(jnp.zeros((BATCH, length, 1)), entry, place)
    reader = Reader(at(Q), Plain(), retention, "auto")
    state, view = (None, memory.view(entry, place, reader)) if state is None else memory.update(state, entry, place, reader)
    return state, view, view.read(reader.query, reader.projection, place, "auto")[0]


def empty(memory, capacity=LENGTH):
    wide, gate = (jax.ShapeDtypeStruct((KEYS, *width), jnp.float32) for width in ((WIDTH,), ()))
    return memory.init(BATCH, capacity, {"k": wide, "v": wide, "retention": gate})


@pytest.mark.parametrize("chunks", CHUNKINGS.values(), ids=CHUNKINGS)
@pytest.mark.parametrize(("budget", "sinks", "recent"), [(8, 2, 3), (3, 0, 0)], ids=str)
@pytest.mark.parametrize("policy", RETENTIONS)
def test_forgets_as_the_list_does(policy, budget, sinks, recent, chunks):
    """Evicted decoding equals masked attention over the same kept set; the state has `budget` slots, no more."""
    memory = Bounded(BoundedConfig(budget=budget, sinks=sinks, recent=recent))
    retention, expected = RETENTIONS[policy], remember(policy, budget, sinks, recent)
    state, out, start = empty(memory), [], 0
    step = jax.jit(lambda state, start, length: call(memory, retention, state, start, length)[::2], static_argnums=2)
    for length in chunks:
        state, one = step(state, start, length)
        out.append(one)
        start += length
    np.testing.assert_allclose(np.concatenate(out, axis=1), expected.out, rtol=1e-5, atol=1e-5)
    assert state["index"].shape == (BATCH, budget, KEYS)
    for (b, n), tokens in expected.kept.items():
        index = np.asarray(state["index"])[b, :, n]
        held = index >= STARTS[b, -1]
        assert sorted(index[held].tolist()) == list(tokens)
        assert np.array_equal(np.asarray(state["entries"]["k"])[b, held, n], K[b, index[held], n])


@pytest.mark.parametrize("policy", RETENTIONS)
def test_whole_rows_see_what_the_list_holds(policy):
    memory = Bounded(BoundedConfig(budget=6, sinks=1, recent=2))
    expected = remember(policy, 6, 1, 2)
    _, view, out = call(memory, RETENTIONS[policy])
    np.testing.assert_allclose(out, expected.out, rtol=1e-5, atol=1e-5)
    evict_at = np.asarray(view.evict_at)
    for (b, i, n), tokens in expected.read.items():
        assert tuple(j for j in range(STARTS[b, i], i + 1) if evict_at[b, j, n] > i) == tokens


def test_nothing_is_evicted_within_the_budget():
    _, view, _ = call(Bounded(BoundedConfig(budget=LENGTH)), KeyNorm())
    assert view.evict_at is None


def test_random_numbers_are_uniform():
    noise = np.asarray(uniform(jnp.arange(5000)[None, :, None], jnp.arange(4, dtype=jnp.uint32), 0))[0]
    counts = np.apply_along_axis(lambda column: np.histogram(column, 10, (0, 1))[0], 0, noise)
    assert (abs(counts - 500) < 6 * np.sqrt(500)).all()
    assert abs(np.corrcoef(noise.T) - np.eye(4)).max() < 0.06


def test_streaming_is_a_window_with_sinks():
    """Another memory, of another making."""
    bounded, window = Bounded(BoundedConfig(budget=9, sinks=2)), Window(7, 2)
    out = [call(memory, Ranking())[2] for memory in (bounded, window)]
    np.testing.assert_allclose(*out, rtol=1e-5, atol=1e-6)


def test_a_state_of_less_capacity_than_budget_keeps_all():
    memory = Bounded(BoundedConfig(budget=64))
    state = empty(memory)
    assert state["index"].shape == (BATCH, LENGTH, KEYS)
    state, _, _ = call(memory, KeyNorm(), state)
    assert (np.sort(np.asarray(state["index"]), axis=1) == np.arange(LENGTH)[:, None]).all()
