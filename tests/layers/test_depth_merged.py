"""Merging over depth against numpy in float64, token by token; full attention where every token stays whole; bytes; bad plans."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mnemax.configs.schema import ModelConfig
from mnemax.evaluation.accounting import layer_costs, live_bytes, state_bytes
from mnemax.layers.attention import Published
from mnemax.layers.memories import Place, Reader, Slots
from mnemax.layers.memories.depth_merged import DepthMerged, DepthMergedConfig
from mnemax.models.params import bind, init_params

B, T, K, H, HV = 2, 19, 2, 8, 6
SPEC = {
    "k": jax.ShapeDtypeStruct((K, H), jnp.dtype("float32")),
    "v": jax.ShapeDtypeStruct((K, HV), jnp.dtype("float32")),
}


@pytest.fixture(scope="module")
def written() -> tuple[dict, dict]:
    """What the lower and the upper layer write: vectors that differ by more or less from token to token."""
    rng = np.random.default_rng(0)
    below = {name: rng.standard_normal((B, T, *leaf.shape)).astype(np.float32) for name, leaf in SPEC.items()}
    strength = rng.uniform(0, 2, (B, T, 1, 1))
    noise = {name: rng.standard_normal(leaf.shape) for name, leaf in below.items()}
    return below, {name: (2 * below[name] + strength * noise[name]).astype(np.float32) for name in below}


def starts_of(*first: int) -> np.ndarray:
    """The index at which each token's document begins."""
    return np.maximum.accumulate([i if i in first else 0 for i in range(T)])


def reader(below: dict, view: Slots | None) -> Reader:
    return Reader(None, None, None, "auto", Published(view, below))  # pyrefly: ignore[bad-argument-type]


def calls(config: DepthMergedConfig, below: dict, entry: dict, starts: np.ndarray, lengths: tuple[int, ...]):
    """The view after each call and the places of its tokens, the lower layer's slots being of memory full."""
    memory, at = DepthMerged(config), 0
    update = jax.jit(
        lambda state, entry, place, low, slots: memory.update(state, entry, place, reader(low, Slots(slots, jnp.arange(T)[None])))
    )
    state = memory.init(B, T, SPEC)
    slots = {name: np.zeros_like(leaf) for name, leaf in below.items()}
    for length in lengths:
        now = slice(at, at + length)
        index = jnp.arange(at, at + length, dtype=jnp.int32)
        place = Place(index, jnp.asarray(np.tile(index - starts[now], (B, 1))))
        for name, leaf in below.items():
            slots[name][:, now] = leaf[:, now]
        part = lambda tree, now=now: {name: jnp.asarray(leaf[:, now]) for name, leaf in tree.items()}  # noqa: E731
        state, view = update(state, part(entry), place, part(below), jax.tree.map(jnp.asarray, slots))
        assert sum(leaf.nbytes for leaf in jax.tree.leaves(state)) == config.cache_bytes(B, T, SPEC)
        yield view, range(at, at + length)
        at += length


def definition(config: DepthMergedConfig, below: dict, entry: dict, starts: np.ndarray) -> tuple[dict, np.ndarray]:
    """What is read of every token, and which are whole, in float64 and one token after another."""
    read = {name: np.zeros(leaf.shape) for name, leaf in entry.items()}
    whole = np.zeros((B, T), bool)
    for b in range(B):
        for t in range(T):
            angles = []
            for name in entry:
                for h in range(K):
                    x, y = (np.asarray(tree[name][b, t, h], np.float64) for tree in (below, entry))
                    direction, length = x / np.linalg.norm(x), np.linalg.norm(y)
                    angles.append(np.arccos(direction @ y / length) / np.pi)
                    read[name][b, t, h] = length * direction
            whole[b, t] = np.mean(angles) > config.apart and whole[b, starts[t] : t].sum() < config.unmerged
            if whole[b, t]:
                for name in entry:
                    read[name][b, t] = entry[name][b, t]
    return read, whole


LENGTHS = (6, 1, 1, 6, 1, 1, 1, 1, 1)


@pytest.mark.parametrize("starts", [starts_of(0), starts_of(0, 4, 13)], ids=["one document", "packed"])
@pytest.mark.parametrize(("unmerged", "apart"), [(0, 0.2), (3, 0.15), (T, 0.2)])
def test_the_definition(written, unmerged, apart, starts):
    config = DepthMergedConfig(of="low", unmerged=unmerged, apart=apart)
    expected, whole = definition(config, *written, starts)
    runs_full = any(whole[b, starts == start].sum() == unmerged for b in range(B) for start in starts)
    assert runs_full or unmerged == T
    assert 0 < whole.sum() < whole.size or unmerged == 0
    place = Place(jnp.arange(T), jnp.asarray(np.tile(np.arange(T) - starts, (B, 1))))
    below, entry = (jax.tree.map(jnp.asarray, tree) for tree in written)
    rows = DepthMerged(config).view(entry, place, reader(below, None))
    for name, leaf in expected.items():
        np.testing.assert_allclose(rows.entries[name], leaf, rtol=1e-4, atol=1e-6)
    for view, tokens in calls(config, *written, starts, LENGTHS):
        for t in tokens:  # what the query of t sees
            seen = slice(starts[t], t + 1)
            assert (np.asarray(view.index)[0, seen] == np.arange(T)[seen]).all()
            for name, leaf in expected.items():
                np.testing.assert_allclose(view.entries[name][:, seen], leaf[:, seen], rtol=1e-4, atol=1e-6)


def test_zeros_have_a_gradient(written):
    """A vector of zeros, in either layer, is read as zeros, and its gradient is finite."""
    below, entry = (jax.tree.map(jnp.asarray, tree) for tree in written)
    below = below | {"k": below["k"].at[:, 3].set(0.0)}
    entry = entry | {"v": entry["v"].at[:, 5].set(0.0)}
    place = Place(jnp.arange(T), jnp.tile(jnp.arange(T), (B, 1)))
    memory = DepthMerged(DepthMergedConfig(of="low", unmerged=0))

    def squares(entry, below):
        read = memory.view(entry, place, reader(below, None)).entries
        return sum(jnp.sum(jnp.square(leaf)) for leaf in read.values()), read

    (_, read), gradients = jax.value_and_grad(squares, (0, 1), has_aux=True)(entry, below)
    assert (read["k"][:, 3] == 0).all()
    np.testing.assert_allclose(read["v"][:, 5], 0, atol=1e-12)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradients))


def model(memory: dict, below: dict | None = None, upper: dict | None = None, **stage) -> ModelConfig:
    projection = {"kind": "gqa", "heads": 4, "kv_heads": 2, "head_width": 16}
    layer = {"attention": {"projection": projection}, "feedforward": {"kind": "glu", "width": 32}}
    layers = [{"attention": {"write": "low"} | (below or {})}, {"attention": {"memory": memory} | (upper or {})}]
    sizes = {"width": 32, "vocab_size": 64, "max_length": 64, "dtype": "float32"}
    return ModelConfig.model_validate(sizes | {"layer": layer, "stages": [{"layers": layers} | stage]})


def test_room_for_all_is_full_attention():
    merged, full = (model(memory, repeat=2) for memory in (merging(unmerged=24, apart=0.0), {"kind": "full"}))
    params = init_params(full, jax.random.key(0))
    tokens = jax.random.randint(jax.random.key(1), (2, 24), 0, 64)
    logits = [jax.jit(lambda p, config=config: bind(config, p)(tokens)[0])(params) for config in (merged, full)]
    np.testing.assert_allclose(*logits, rtol=1e-5, atol=1e-6)


def test_bytes_are_below_those_of_full():
    """Of 64 tokens, 8 of them whole: two heads of keys and values take 64 + 4 numbers apart, and 64 as ratios."""
    merged, full = (model(memory) for memory in (merging(unmerged=8), {"kind": "full"}))
    for config in (merged, full):
        state = jax.eval_shape(lambda config=config: bind(config, init_params(config, jax.random.key(0))).init_state(1, 64))
        assert live_bytes(state) == state_bytes(config, 1, 64)
    entry = 4 * (2 * 16 + 2 * 16)
    ratios, whole = 64 * 4 * (2 + 2), 8 * (entry + 4)
    assert [cost.state_bytes for cost in layer_costs(merged, 64)] == [64 * entry, ratios + whole]
    assert [cost.read_bytes for cost in layer_costs(merged, 64)] == [64 * entry, 64 * entry + ratios + whole]
    assert state_bytes(merged, 1, 64) < 0.6 * state_bytes(full, 1, 64)


def merging(**fields) -> dict:
    return {"kind": "depth_merged", "of": "low"} | fields


@pytest.mark.parametrize(
    ("below", "upper", "words"),
    [
        ({"write": "other"}, {}, "memory.of: no layer before it writes 'low' (written so far: other)"),
        (
            {"memory": {"kind": "window", "size": 8}},
            {},
            "stages[0].layers[1].attention.memory.of: 'low' is written by memory window, and memory depth_merged takes",
        ),
        (
            {},
            {"projection": {"kv_heads": 4}},
            "memory.of: 'low' has entries of shape {'k': (2, 16), 'v': (2, 16)} and this layer's projection {'k': (4, 16)",
        ),
        ({}, {"projection": {"rope": {"theta": 5.0}}}, "memory.of: 'low' has projection.rope "),
        ({}, {"projection": {"rotated": "read"}}, "memory.of: 'low' has projection.rotated written and this layer read"),
    ],
    ids=["nobody writes it", "not full", "other heads", "other rotation", "rotated otherwise"],
)
def test_bad_plans(below, upper, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        model(merging(), below, upper)


def test_latents_are_refused():
    recompute = {"projection": {"kind": "recompute", "heads": 4, "kv_heads": 2, "head_width": 16}}
    with pytest.raises(ValueError, match="must be equal, of heads and their width"):
        model(merging(), recompute, recompute)
