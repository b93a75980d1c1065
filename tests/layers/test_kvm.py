"""Key-value means against the golden reference, head by head and document by document."""

from itertools import pairwise
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from pydantic import ValidationError

from mnemax.configs.load import load_model
from mnemax.configs.schema import AttentionConfig
from mnemax.errors import UserError
from mnemax.kernels.merge import merge
from mnemax.layers.memories import Place
from mnemax.layers.memories.kvm import KVMConfig
from mnemax.layers.param import Init
from mnemax.layers.projections import Projection
from tests.golden import kvm as golden

SSM = {"heads": 4, "head_width": 8, "state_width": 8}
KEY_HEADS, GROUP, WIDTH, VALUE_WIDTH, LENGTH = 2, 2, 6, 5, 43
SPEC = {
    "k": jax.ShapeDtypeStruct((KEY_HEADS, WIDTH), jnp.dtype("float32")),
    "v": jax.ShapeDtypeStruct((KEY_HEADS, VALUE_WIDTH), jnp.dtype("float32")),
    "merge": jax.ShapeDtypeStruct((KEY_HEADS,), jnp.dtype("float32")),
}
FIXED, POWER, SATURATING = (
    {"kind": "fixed", "slots": 11},
    {"kind": "power", "factor": 2.0, "power": 0.5, "least": 4},
    {"kind": "saturating", "slots": 20},
)
BUDGETS = {"fixed": golden.fixed(11), "power": golden.power(2.0, 0.5, least=4), "saturating": golden.saturating(20)}
CASES = {
    "fixed": {"growth": FIXED},
    "power": {"growth": POWER},
    "saturating": {"growth": SATURATING},
    "no sinks": {"growth": POWER, "sinks": 0},
    "no head temperatures": {"growth": FIXED, "head_temperatures": False},
    "no value norm": {"growth": FIXED, "value_norm": False},
    "gated appends": {"growth": POWER, "gate_appends": True},
    "masked again": {"growth": SATURATING, "remask": True},
    "nothing rotated": {"growth": FIXED, "rotated": 0},
    "windows of one chunk": {"growth": POWER, "window_chunks": 1},
    "windows of three chunks": {"growth": FIXED, "window_chunks": 3},
    "no merge gate": {"growth": FIXED},
}
DOCUMENTS = [(43,), (17, 1, 25)]
CALLS = {"steps": (1,) * 43, "mixed": (14, 1, 14, 14)}


class Plain(Projection):
    """Queries and entries as they are."""

    scale, softcap = WIDTH**-0.5, None

    def expand(self, entries):
        return entries["k"], entries["v"]


def build(**fields):
    """A memory whose every weight matters."""
    config = KVMConfig(**{"chunk": 4, "rotated": 2} | fields)
    memory = config.build(SPEC, Init(load_model("kvm"), jax.random.key(0)))
    rng = np.random.default_rng(1)
    for name, value in vars(memory).items():
        if isinstance(value, nnx.Param):
            noise = 0.3 * rng.standard_normal(value.shape)
            setattr(memory, name, nnx.Param(jnp.float32((name != "bias") + noise), axes=value.axes, contract=0))
    return config, memory


def rows(gate: bool = True):
    """Queries [B, T, N, H] and entries of one row a tuple of DOCUMENTS, and where they stand."""
    rng, batch = np.random.default_rng(0), len(DOCUMENTS)
    query, k, v = (
        rng.standard_normal((batch, LENGTH, *shape)).astype(np.float32)
        for shape in ((KEY_HEADS * GROUP, WIDTH), (KEY_HEADS, WIDTH), (KEY_HEADS, VALUE_WIDTH))
    )
    entry = {"k": k, "v": v}
    if gate:
        entry["merge"] = np.exp(0.3 * rng.standard_normal((batch, LENGTH, KEY_HEADS))).astype(np.float32)
    positions = np.stack([np.concatenate([np.arange(n) for n in row]) for row in DOCUMENTS]).astype(np.int32)
    return query, entry, Place(np.arange(LENGTH, dtype=np.int32), positions)


def expected(config, memory, query, entry):
    """The golden outputs [B, T, N, Hv]."""
    out = np.zeros((*query.shape[:3], VALUE_WIDTH))
    for row, documents in enumerate(DOCUMENTS):
        for (start, stop), head in ((span, head) for span in pairwise(np.cumsum([0, *documents])) for head in range(KEY_HEADS)):
            switches = ("chunk", "window_chunks", "sinks", "rotated", "value_norm", "gate_appends", "remask")
            warm = memory.slot_temperature is not None
            settings = golden.Settings(
                **{name: getattr(config, name) for name in switches},
                budget=BUDGETS[config.growth.kind],
                weight=np.float64(memory.weight[...]),
                bias=np.float64(memory.bias[...]),
                state_temperature=float(memory.slot_temperature[head]) if warm else 1.0,
                window_temperature=float(memory.window_temperature[head]) if warm else 1.0,
            )
            queries = slice(head * GROUP, (head + 1) * GROUP)
            k, v = (np.float64(entry[name][row, start:stop, head]) for name in ("k", "v"))
            g = np.float64(entry["merge"][row, start:stop, head]) if "merge" in entry else np.ones(stop - start)
            q = np.float64(query[row, start:stop, queries])
            out[row, start:stop, queries] = golden.prefill(settings, q, k, v, g)[0]
    return out


@pytest.mark.parametrize("case", CASES)
def test_whole_rows_equal_golden(case):
    (config, memory), (query, entry, place) = build(**CASES[case]), rows(gate=case != "no merge gate")
    read = lambda memory, query, entry, place: memory.view(entry, place, None).read(query, Plain(), place, "auto")[0]  # noqa: E731
    found = jax.jit(read)(memory, query, entry, place)
    np.testing.assert_allclose(found, expected(config, memory, query, entry), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("case", ["fixed", "power", "gated appends", "windows of one chunk"])
@pytest.mark.parametrize("lengths", CALLS.values(), ids=CALLS)
def test_calls_of_any_length_equal_golden(case, lengths):
    (config, memory), (query, entry, place) = build(**CASES[case]), rows()

    @jax.jit
    def call(memory, state, query, entry, place):
        state, view = memory.update(state, entry, place, None)
        return state, view.read(query, Plain(), place, "auto")[0]

    state, found = memory.init(len(DOCUMENTS), LENGTH, SPEC), []
    for start, stop in pairwise(np.cumsum([0, *lengths])):
        now = Place(place.index[start:stop], place.positions[:, start:stop])
        cut = {name: leaf[:, start:stop] for name, leaf in entry.items()}
        state, out = call(memory, state, query[:, start:stop], cut, now)
        found.append(out)
    np.testing.assert_allclose(np.concatenate(found, axis=1), expected(config, memory, query, entry), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["fixed", "gated appends"])
def test_gradients_equal_differences_of_golden(case):
    """The slope along one random direction in queries, entries and weights; the choice of slots does not change within the step."""
    (config, memory), (query, entry, place) = build(**CASES[case]), rows()
    names = ("weight", "bias", "slot_temperature", "window_temperature")
    at = (query, entry, {name: np.asarray(getattr(memory, name)[...]) for name in names})
    rng = np.random.default_rng(2)
    along = jax.tree.map(lambda a: rng.standard_normal(a.shape), at)
    cotangent = rng.standard_normal((*query.shape[:3], VALUE_WIDTH))

    @jax.jit
    @jax.grad
    def gradient(at):
        query, entry, weights = at
        _, memory = build(**CASES[case])
        for name, value in weights.items():
            getattr(memory, name)[...] = value
        return jnp.sum(cotangent * memory.view(entry, place, None).read(query, Plain(), place, "auto")[0])

    def golden_loss(step):
        query, entry, weights = jax.tree.map(lambda a, b: np.float64(a) + step * b, at, along)
        return np.sum(cotangent * expected(config, SimpleNamespace(**weights), query, entry))

    slopes = jax.tree.map(lambda g, b: np.sum(np.float64(g) * b), gradient(at), along)
    difference = (golden_loss(1e-6) - golden_loss(-1e-6)) / 2e-6
    np.testing.assert_allclose(sum(jax.tree.leaves(slopes)), difference, rtol=1e-4)


@pytest.mark.parametrize("power", [0.25, 0.5, 0.75])
def test_slots_grow_as_configured(power):
    config = KVMConfig(chunk=16, rotated=0, growth={"kind": "power", "factor": 8.0, "power": power, "least": 16})
    lengths = np.array([2**n for n in range(16, 24)])
    slots = [config.slots(int(length)) for length in lengths]
    np.testing.assert_allclose(np.polyfit(np.log(lengths), np.log(slots), 1)[0], power, atol=0.01)
    spec = {name: SPEC[name] for name in ("k", "v")}
    state = jax.eval_shape(lambda: build(chunk=16, growth=config.growth)[1].init(1, 2**16, spec))
    assert config.cache_bytes(1, 2**16, spec) == sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))


def test_published_numbers_of_slots():
    """16 sqrt(t) and saturation at 1024, chunks of 256 (the paper's), as the token after so many reads them."""
    root = KVMConfig(rotated=0, growth={"kind": "power", "factor": 16, "power": 0.5, "least": 256})
    saturated = KVMConfig(rotated=0, growth={"kind": "saturating", "slots": 1024})
    lengths = [2048, 4096, 8192, 16384, 32768]
    assert [root.slots(n + 1) for n in lengths] == [724, 1024, 1448, 2048, 2896]
    assert [saturated.slots(n + 1) for n in lengths] == [682, 819, 910, 963, 992]


def test_merged_parts_are_one_attention():
    rng = np.random.default_rng(0)
    logits, values = rng.standard_normal((3, 4, 1, 9)), rng.standard_normal((9, 5))
    logits[1, :, :, :6], logits[2] = -np.inf, -np.inf

    def part(keys):
        p = np.exp(logits[..., keys])
        z = p.sum(-1)
        with np.errstate(divide="ignore", invalid="ignore"):
            return jnp.float32(np.where(z[..., None] > 0, p @ values[keys] / z[..., None], 0)), jnp.float32(np.log(z))

    both = merge(part(slice(0, 2)), part(slice(2, 6)), part(slice(6, 9)))
    for found, expected in zip(both, part(slice(0, 9)), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    gradient = jax.grad(lambda parts: merge(*parts)[0].sum())([part(slice(0, 2)), part(slice(2, 9))])
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


def test_merge_gate():
    model = load_model("kvm")
    attention = model.layers[0].attention
    gate = attention.retention.build(model, attention.projection, Init(model, jax.random.key(0)))
    x = np.random.default_rng(0).standard_normal((2, 3, model.width)).astype(np.float32) * 30
    z = np.float64(x) @ np.float64(gate.w_g[...])
    found = gate(jnp.asarray(x), {}, Place(np.arange(3, dtype=np.int32), np.zeros((2, 3), np.int32)))["merge"]
    assert (z < 0).any() and (z > 0).any()
    np.testing.assert_allclose(found, np.where(z > 0, 1 + z, np.exp(np.minimum(z, 0))), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"chunk": 0}, "greater than or equal to 1"),
        ({"chunk": 4, "sinks": 4}, "does not exceed sinks"),
        ({"growth": {"kind": "fixed", "slots": 3}}, "below chunk"),
        ({"growth": {"kind": "power", "factor": 2.0, "power": 1.5}}, "less than or equal to 1"),
        ({"growth": {"kind": "power", "factor": 2.0, "power": 0.0}}, "greater than 0"),
    ],
)
def test_refused_fields(fields, words):
    with pytest.raises(ValidationError, match=words):
        KVMConfig(**{"chunk": 4, "rotated": 0} | fields)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"memory": {"rotated": 4}}, "rotates 8 channels"),
        ({"memory": {"rotated": 16}, "projection": {"rope": {"fraction": 1.0}}}, "leave channels unrotated"),
        ({"memory": {"rotated": 0}, "projection": {"kind": "attamba", "heads": 4, "chunk": 4, "ssm": SSM}}, "rotates whole keys"),
        ({"memory": {"gate_appends": True}, "retention": None}, "needs the gate 'merge'"),
    ],
)
def test_refused_attention(fields, words):
    attention = {
        "projection": {"kind": "gqa", "heads": 4, "kv_heads": 2, "head_width": 16, "rope": {"fraction": 0.5}},
        "memory": {"kind": "kvm", "chunk": 4, "rotated": 8},
        "retention": {"kind": "merge_gate"},
    }
    for field, changed in fields.items():
        attention[field] = changed if changed is None or "kind" in changed else attention[field] | changed
    with pytest.raises(ValidationError, match=words):
        AttentionConfig.model_validate(attention)


def test_a_chunk_longer_than_any_context():
    with pytest.raises(UserError, match=r"chunk \(4\) exceeds model\.max_length \(3\)"):
        load_model("kvm", ["max_length=3"])
