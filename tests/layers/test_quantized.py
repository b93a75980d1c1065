"""Quantised entries against plain numpy: the arithmetic, and what every query reads."""

from functools import cache

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from mnemax.configs.load import load_model
from mnemax.errors import UserError
from mnemax.kernels import quantization
from mnemax.layers.memories import Place, Reader
from mnemax.layers.memories.bounded import BoundedConfig
from mnemax.layers.memories.chunk_ends import ChunkEndsConfig
from mnemax.layers.memories.full import FullConfig
from mnemax.layers.memories.quantized import QuantizedConfig
from mnemax.layers.memories.window import WindowConfig
from mnemax.layers.projections import Projection
from mnemax.layers.retention import Ranking
from mnemax.layers.retention.h2o import H2O
from mnemax.layers.retention.keydiff import KeyDiff
from mnemax.layers.retention.tova import TOVA

INTEGERS = {"int8": 255, "int4": 15, "int2": 3}
BATCH, LENGTH, HEADS, KEYS, WIDTH, SCALE = 2, 40, 4, 2, 8, 0.5
STARTS = np.array([[0] * LENGTH, [0] * 3 + [3] * 17 + [20] + [21] * (LENGTH - 21)], np.int32)
RNG = np.random.default_rng(0)
Q = RNG.standard_normal((BATCH, LENGTH, HEADS, WIDTH)).astype(np.float32)
K, V = (RNG.standard_normal((BATCH, LENGTH, KEYS, WIDTH)).astype(np.float32) for _ in range(2))
SPEC = {name: jax.ShapeDtypeStruct((KEYS, WIDTH), jnp.dtype("float32")) for name in ("k", "v")}
WAYS = {"parallel": None, "steps": (1,) * LENGTH, "chunks": (13, 1, 13, 13)}


class Plain(Projection):
    """Entries are keys and values themselves."""

    def __init__(self):
        self.scale, self.softcap, self.reads = SCALE, None, False

    def expand(self, entries):
        return entries["k"], entries["v"]


class Fading(Ranking):
    """Logits that fall with age, faster for some tokens than for others."""

    def slope(self, entries):
        return -jnp.abs(entries["v"][..., 0])


# The arithmetic


def plain(x: np.ndarray, form: str, axis: int) -> np.ndarray:
    """Quantisation of groups that lie along an axis."""
    if form == "none":
        return x
    if form == "fp8":
        scale = np.abs(x).max(axis, keepdims=True) / 448
        return (x / scale).astype(ml_dtypes.float8_e4m3fn).astype(np.float64) * scale
    low, high = x.min(axis, keepdims=True), x.max(axis, keepdims=True)
    scale = np.where(high > low, (high - low) / INTEGERS[form], 1)
    return low + scale * np.round((x - low) / scale)


def by_channels(x: np.ndarray, form: str, size: int) -> np.ndarray:
    return x if form == "none" else plain(x.reshape(*x.shape[:-1], -1, size), form, -1).reshape(x.shape)


def round_trip(x: np.ndarray, form: quantization.Format, size: int, clip: float = 1.0) -> np.ndarray:
    given = quantization.of_neighbours(jnp.asarray(x), size, form, clip)
    return np.asarray(quantization.decode(quantization.encode(jnp.asarray(x), given, form), given, form))


@pytest.mark.parametrize("form", ["int8", "int4", "int2", "fp8"])
def test_round_trip(form):
    x = (RNG.standard_normal((3, 5, 64)) * 3 + 1).astype(np.float32)
    found = round_trip(x, form, 16)
    np.testing.assert_allclose(found, by_channels(x.astype(np.float64), form, 16), atol=2e-5)
    grouped = x.reshape(3, 5, 4, 16)
    if form == "fp8":  # three bits after the first, or half the least step
        bound = np.maximum(np.abs(grouped) / 16, np.abs(grouped).max(-1, keepdims=True) / 448 * 2**-10)
    else:
        bound = (grouped.max(-1, keepdims=True) - grouped.min(-1, keepdims=True)) / INTEGERS[form] / 2
    assert (np.abs(found.reshape(grouped.shape) - grouped) <= bound * 1.0001 + 1e-6).all()


@pytest.mark.parametrize("form", ["int8", "int4", "int2", "fp8"])
def test_bfloat16_parameters_cut_nothing_off(form):
    """A large offset and a small range: the zero point is rounded to 2^-8 of the offset, as the numbers themselves are."""
    x = jnp.asarray(RNG.standard_normal((64, 32)) + 20, jnp.bfloat16)
    error = np.abs(round_trip(x, form, 32) - np.asarray(x, np.float32))
    span = np.asarray(x.max(-1) - x.min(-1), np.float32)[:, None]
    coarse = 20 / 16 if form == "fp8" else span / INTEGERS[form] / 2
    assert (error <= coarse * 1.02 + 21 / 256).all()


@pytest.mark.parametrize(("form", "bits"), [("int8", 8), ("int4", 4), ("int2", 2)])
def test_codes_are_packed(form, bits):
    codes = RNG.integers(0, 2**bits, (2, 3, 32))
    given = {"zero": jnp.zeros((2, 3, 1)), "scale": jnp.ones((2, 3, 1))}
    packed = np.asarray(quantization.encode(jnp.asarray(codes, jnp.float32), given, form))
    assert packed.dtype == np.uint8 and packed.shape == (2, 3, 32 * bits // 8)
    each = 8 // bits
    expected = sum(codes[..., i::each] << bits * i for i in range(each))
    assert np.array_equal(packed, expected)
    assert np.array_equal(quantization.decode(jnp.asarray(packed), given, form), codes)


def test_alike_numbers_and_zeros_stay():
    for form in ("int8", "int4", "int2", "fp8"):
        x = np.repeat(np.array([[0.0], [3.25]], np.float32), 8, axis=1)
        np.testing.assert_allclose(round_trip(x, form, 8), x, rtol=1e-6)


def test_clipping():
    """Of an even spread from -1 to 1, half of the range: what lies outside goes to -0.5 and 0.5."""
    x = np.linspace(-1, 1, 256, dtype=np.float32)[None]
    found = round_trip(x, "int8", 256, clip=0.5)
    np.testing.assert_allclose(found, np.clip(x, -0.5, 0.5), atol=0.003)


@pytest.mark.parametrize("form", ["int4", "fp8"])
def test_gradients_go_straight_through(form):
    x = jnp.linspace(-1, 1, 256)[None]
    given = quantization.of_neighbours(x, 256, form, 0.5)
    weights = jnp.arange(256.0)
    value = lambda x: jnp.sum(weights * quantization.quantized(x, given, form))  # noqa: E731
    gradient = np.asarray(jax.grad(value)(x))[0]
    kept = np.abs(np.asarray(x)[0]) < 0.5
    assert np.array_equal(gradient[kept], np.arange(256.0)[kept])
    assert (gradient[np.abs(np.asarray(x)[0]) > 0.6] == 0).all()
    decoded = quantization.decode(quantization.encode(x, given, form), given, form)
    assert np.array_equal(quantization.quantized(x, given, form), decoded)


@pytest.mark.parametrize("size", [1, 2, 5, 8])
def test_running_range(size):
    x = RNG.standard_normal((2, 13, 3))
    low, high = quantization.running_range(jnp.asarray(x), size)
    windows = np.lib.stride_tricks.sliding_window_view(x, size, axis=1)
    np.testing.assert_allclose(low, windows.min(-1), rtol=1e-6)
    np.testing.assert_allclose(high, windows.max(-1), rtol=1e-6)


def test_hadamard():
    matrix = quantization.hadamard(16)
    np.testing.assert_allclose(matrix @ matrix, np.eye(16), atol=1e-6)
    np.testing.assert_allclose(np.abs(matrix), 0.25, rtol=1e-6)


def test_a_channel_that_stands_out_is_for_scales_per_channel():
    """KIVI's observation; and a rotation spreads the channel over all of them, QuaRot's."""
    x = RNG.standard_normal((256, 32)).astype(np.float32)
    x[:, 5] += 40
    error = lambda found: float(np.mean((found - x) ** 2))  # noqa: E731
    per_token = error(round_trip(x, "int2", 32))
    per_channel = error(round_trip(x.T.copy(), "int2", 32).T)
    matrix = quantization.hadamard(32)
    rotated = error(round_trip(x @ matrix, "int2", 32) @ matrix)
    assert per_channel < 0.1 * rotated < 0.1 * per_token


# The memory


@cache
def caller(config, kind: type[Ranking] | None, projection: type[Projection]):
    """The memory, and a jitted call of it; `state` None: the parallel form."""
    spec = SPEC if kind is None else SPEC | {"retention": jax.ShapeDtypeStruct((KEYS,), jnp.dtype("float32"))}
    memory, retention = config.build(spec, None), None if kind is None else kind()

    @jax.jit
    def call(state, place, q, entry):
        if retention is not None:
            entry = entry | {"retention": jnp.zeros(entry["k"].shape[:3])}
        reader = Reader(q, projection(), retention, "reference")
        if state is None:
            view = memory.view(entry, place, reader)
        else:
            state, view = memory.update(state, entry, place, reader)
        return state, view.read(q, projection(), place, "reference")[0]

    return memory.init(BATCH, LENGTH, spec), call


def read(config, chunks: tuple[int, ...] | None, kind: type[Ranking] | None = None, *, k=K, projection=Plain) -> np.ndarray:
    """What the queries read, in calls of these lengths; None: the parallel form."""
    state, call = caller(config, kind, projection)
    state, outs, at = None if chunks is None else state, [], 0
    for length in chunks or (LENGTH,):
        part = slice(at, at + length)
        index = np.arange(at, at + length, dtype=np.int32)
        place = Place(jnp.asarray(index), jnp.asarray(index - STARTS[:, part]))
        entry = {"k": jnp.asarray(k[:, part]), "v": jnp.asarray(V[:, part])}
        state, out = call(state, place, jnp.asarray(Q[:, part]), entry)
        outs.append(np.asarray(out))
        at += length
    return np.concatenate(outs, axis=1)


def remembered(config: QuantizedConfig) -> np.ndarray:
    """The definition, a query at a time, in float64."""
    matrix = quantization.hadamard(WIDTH) if config.rotation == "hadamard" else np.eye(WIDTH)
    size = config.inner.size if isinstance(config.inner, WindowConfig) else LENGTH
    out = np.zeros_like(Q)
    for b in range(BATCH):
        for i in range(LENGTH):
            start = STARTS[b, i]
            k, v = (x[b, start : i + 1].astype(np.float64) for x in (K, V))
            coded_v = by_channels(v @ matrix, config.values, min(config.group, WIDTH)) @ matrix
            if config.key_layout == "per_token":
                coded_k = by_channels(k @ matrix, config.keys, min(config.group, WIDTH)) @ matrix
            else:
                groups = [(k @ matrix)[at : at + config.group] for at in range(0, len(k), config.group)]
                coded_k = np.concatenate([plain(group, config.keys, 0) for group in groups]) @ matrix
            position, now = np.arange(len(k)), i - start
            exact = (now - position < config.residual) | (position < config.sinks)
            k, v = (np.where(exact[:, None, None], x, coded) for x, coded in ((k, coded_k), (v, coded_v)))
            seen = exact | (now - position < config.residual + size)
            for h in range(HEADS):
                n = h * KEYS // HEADS
                logits = SCALE * k[seen, n] @ Q[b, i, h]
                p = np.exp(logits - logits.max())
                out[b, i, h] = p / p.sum() @ v[seen, n]
    return out


CONFIGS = {
    "KIVI": QuantizedConfig(keys="int2", values="int2", group=4, residual=8),
    "the least residual": QuantizedConfig(keys="int4", values="none", group=5, residual=5, sinks=2),
    "rotated, per token": QuantizedConfig(
        keys="int4", values="int4", key_layout="per_token", group=4, residual=1, sinks=1, rotation="hadamard"
    ),
    "rotated, per channel": QuantizedConfig(keys="int4", values="fp8", group=4, residual=6, rotation="hadamard"),
    "fp8": QuantizedConfig(keys="fp8", values="fp8", group=8, residual=9),
    "window": QuantizedConfig(keys="int4", values="int2", group=4, residual=6, sinks=3, inner=WindowConfig(size=7)),
    "ends of chunks": QuantizedConfig(keys="int4", values="int2", group=4, residual=6, inner=ChunkEndsConfig(chunk=4, lead=40)),
    "window, values alone": QuantizedConfig(keys="none", values="int8", group=8, residual=3, inner=WindowConfig(size=5)),
}


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("chunks", WAYS.values(), ids=WAYS)
def test_what_is_read(name, chunks):
    found = read(CONFIGS[name], chunks)
    np.testing.assert_allclose(found, remembered(CONFIGS[name]), atol=2e-5)


@pytest.mark.parametrize("chunks", WAYS.values(), ids=WAYS)
def test_a_rotation_alone_changes_nothing(chunks):
    config = QuantizedConfig(keys="none", values="none", residual=3, sinks=1, rotation="hadamard")
    np.testing.assert_allclose(read(config, chunks), read(FullConfig(), chunks), atol=2e-6)


def test_another_document_does_not_reach_through_the_scales():
    other = K.copy()
    other[1, :21] = 100 * RNG.standard_normal(other[1, :21].shape)
    for chunks in WAYS.values():
        assert np.array_equal(read(CONFIGS["KIVI"], chunks)[1, 21:], read(CONFIGS["KIVI"], chunks, k=other)[1, 21:])


@pytest.mark.parametrize("chunks", WAYS.values(), ids=WAYS)
def test_bounded_by_age_is_a_window(chunks):
    common = {"keys": "int4", "values": "int2", "key_layout": "per_token", "group": 8, "residual": 3, "sinks": 1}
    bounded = QuantizedConfig(**common, inner=BoundedConfig(budget=6))
    window = QuantizedConfig(**common, inner=WindowConfig(size=6))
    np.testing.assert_allclose(read(bounded, chunks, Ranking), read(window, chunks), atol=1e-5)


@pytest.mark.parametrize("chunks", WAYS.values(), ids=WAYS)
def test_a_window_before_the_ends_of_chunks_is_a_longer_lead(chunks):
    config = QuantizedConfig(keys="none", values="none", residual=6, inner=ChunkEndsConfig(chunk=4, lead=1, offset=1))
    np.testing.assert_allclose(read(config, chunks), read(ChunkEndsConfig(chunk=4, lead=7, offset=1), None), atol=2e-6)


@pytest.mark.parametrize("layout", ["per_token", "per_channel"])
def test_ends_of_chunks_in_any_chunking(layout):
    config = QuantizedConfig(
        keys="int4", values="int2", key_layout=layout, group=4, residual=5, inner=ChunkEndsConfig(chunk=3, lead=0)
    )
    whole = read(config, None)
    for chunks in (WAYS["steps"], WAYS["chunks"]):
        np.testing.assert_allclose(read(config, chunks), whole, atol=2e-5)


@pytest.mark.parametrize("retention", [KeyDiff, H2O, TOVA, Fading])
def test_bounded_codes_in_any_chunking(retention):
    config = QuantizedConfig(
        keys="int8", values="int8", key_layout="per_token", residual=3, rotation="hadamard", inner=BoundedConfig(budget=6)
    )
    whole = read(config, None, retention)
    for chunks in (WAYS["steps"], WAYS["chunks"]):
        np.testing.assert_allclose(read(config, chunks, retention), whole, atol=2e-5)


class Expanding(Plain):
    """Keys that are made of entries, as a latent's are."""

    def expand(self, entries):
        return jnp.tanh(entries["k"]), entries["v"]


@pytest.mark.parametrize("name", ["rotated, per token", "rotated, per channel"])
def test_a_projection_that_expands_entries_gets_them_as_they_were(name):
    """The rotation is undone before, and not after, what a projection makes of an entry."""
    for chunks in WAYS.values():
        rotated = read(CONFIGS[name].model_copy(update={"keys": "none", "values": "none"}), chunks, projection=Expanding)
        np.testing.assert_allclose(rotated, read(FullConfig(), chunks, projection=Expanding), atol=1e-5)


@pytest.mark.parametrize("chunks", WAYS.values(), ids=WAYS)
def test_what_a_retention_adds_to_logits_counts_from_the_token(chunks):
    """Bounded slots that are enough for all, and no quantisation."""
    config = QuantizedConfig(keys="none", values="none", residual=3, inner=BoundedConfig(budget=LENGTH))
    found = read(config, chunks, Fading)
    np.testing.assert_allclose(found, read(BoundedConfig(budget=LENGTH), None, Fading), atol=1e-5)


# Bytes and refusals


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("capacity", [1, 5, 64, 1000])
@pytest.mark.parametrize("name", CONFIGS)
def test_live_bytes(name, capacity, dtype):
    spec = {leaf: jax.ShapeDtypeStruct((KEYS, 32), jnp.dtype(dtype)) for leaf in ("k", "v")}
    config = CONFIGS[name]
    state = config.build(spec, None).init(3, capacity, spec)
    assert config.cache_bytes(3, capacity, spec) == sum(leaf.nbytes for leaf in jax.tree.leaves(state))


def test_bytes_of_two_bits():
    """2048 tokens of 8 heads of 128 in bfloat16, groups of 32: 2 bits a number, and 32 of scale and zero point a group: 3 bits."""
    spec = {name: jax.ShapeDtypeStruct((8, 128), jnp.dtype("bfloat16")) for name in ("k", "v")}
    config = QuantizedConfig(keys="int2", values="int2", group=32, residual=32)
    number = 2 * 8 * 128
    assert config.cache_bytes(1, 2048, spec) == 2048 * number * 3 // 8 + 32 * (2 * number + 4)
    assert FullConfig().cache_bytes(1, 2048, spec) / config.cache_bytes(1, 2048, spec) > 4.8


@pytest.mark.parametrize(
    ("memory", "says"),
    [
        ("{kind: quantized, inner: {kind: kvm, rotated: 0}}", "no kind 'kvm'"),
        ("{kind: quantized, inner: {kind: quantized}}", "no kind 'quantized'"),
        ("{kind: quantized, sinks: 1, inner: {kind: chunk_ends, chunk: 4, lead: 3}}", "counts its chunks"),
        ("{kind: quantized, keys: int3}", "keys"),
        ("{kind: quantized, group: 64, residual: 32}", "residual (32) is below group (64)"),
        ("{kind: quantized, inner: {kind: bounded, budget: 8}}", "key_layout: per_token"),
        ("{kind: quantized, inner: {kind: window, size: 8, sinks: 2}}", "inner.sinks (2)"),
        ("{kind: quantized, key_layout: per_token, inner: {kind: bounded, budget: 8}}", "needs the gate 'retention'"),
        ("{kind: quantized, clip: 0}", "clip"),
    ],
)
def test_what_is_refused(memory, says):
    with pytest.raises(UserError) as refusal:
        load_model("window", [f"layer.attention.memory={memory}"])
    assert says in str(refusal.value) and str(refusal.value).count("\n") == 0


@pytest.mark.parametrize(
    ("fields", "width", "says"),
    [
        ({"group": 12}, 32, "does not divide"),
        ({"rotation": "hadamard", "group": 8}, 24, "power of 2"),
        ({"values": "int2"}, 6, "bytes"),
    ],
)
def test_widths_that_do_not_fit(fields, width, says):
    spec = {name: jax.ShapeDtypeStruct((KEYS, width), jnp.dtype("float32")) for name in ("k", "v")}
    with pytest.raises(UserError, match=says):
        QuantizedConfig(**fields).build(spec, None)
