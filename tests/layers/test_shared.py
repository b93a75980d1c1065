"""Shared matrices against plain formulas in numpy, their bytes, and where they are refused."""

import jax
import numpy as np
import pytest

from mnemax.configs.load import load_model
from mnemax.errors import UserError
from mnemax.evaluation.accounting import state_bytes
from mnemax.layers.param import Init
from mnemax.models.params import weights
from tests.laws.conftest import Architecture
from tests.layers.plain import T, X, attended, heads, layer_and_weights, logits, normed, turned

PROJECTION = "layer.attention.projection"


@pytest.mark.parametrize(
    ("model", "overrides"),
    [
        ("shared_kv", ()),
        ("shared_kv_mqa", ()),
        ("shared_kv", ("rope=null", "scale=0.7")),
        ("shared_qk", ()),
        ("shared_qkv", ("scale=0.3",)),
        ("shared_qk", ("qk_norm=head", "relative=3")),
        ("shared_kv", ("qk_norm=head", "value_norm=true")),
    ],
)
def test_the_formula(model, overrides):
    attention, out, w = layer_and_weights(model, *overrides)
    c = attention.projection
    k = heads(X, w["w_k"])
    q = heads(X, w["w_q"]) if c.share == "kv" else k
    v = heads(X, w["w_v"]) if c.share == "qk" else k
    if c.value_norm:
        v = normed(v, np.ones(v.shape[-1]))
    if c.qk_norm == "head":
        q, k = normed(q, w["q_norm.scale"]), normed(k, w["k_norm.scale"])
    if c.rope is not None:
        q, k = turned(q), turned(k)
    z = logits(q, k, c.head_width**-0.5 if c.scale is None else c.scale)
    if c.relative is not None:  # a Fourier series in the distance, as a table [N, T, T]
        distance = np.arange(T)[:, None] - np.arange(T)
        wave = distance[..., None] * 10_000.0 ** (-np.arange(c.relative) / c.relative)
        a, b = np.split(w["u"], 2, axis=-1)
        z += np.einsum("nf,ijf->nij", a, np.cos(wave)) - np.einsum("nf,ijf->nij", b, np.sin(wave))
    np.testing.assert_allclose(out, attended(z, v, w["w_o"]), rtol=1e-4, atol=1e-4)


def test_a_fresh_model_tells_before_from_after():
    """The logit of (i, j) is not that of (j, i), whatever the tokens."""
    c = load_model("shared_qk")
    u = np.asarray(c.layers[0].attention.projection.build(c, Init(c, jax.random.key(0)), part="whole").u[...])
    wave = np.array([1.0, -1.0])[:, None] * 10_000.0 ** (-np.arange(4) / 4)  # one token before and one after
    a, b = np.split(u, 2, axis=-1)
    before, after = (a @ np.cos(wave).T - b @ np.sin(wave).T).T
    assert (np.abs(before - after) > 1e-3).all()


@pytest.mark.parametrize(("kv_heads", "share"), [(16, 1 / 2), (4, 1 / 8), (1, 1 / 32)])
def test_bytes_beside_multi_head_attention(kv_heads, share):
    """16 heads: one half with as many keys, 12.5 % with 4, 3.1 % with one: 96.9 % saved."""
    sizes = ["dtype=bfloat16", f"{PROJECTION}.heads=16"]
    of = lambda model, keys: state_bytes(load_model(model, [*sizes, f"{PROJECTION}.kv_heads={keys}"]), 2, 200) - 4  # noqa: E731
    assert of("shared_kv", kv_heads) == share * of("mha", 16)


def test_matrices_are_as_many_as_said():
    assert [name for name in weights(load_model("shared_qkv")) if "attention.projection.w_" in name] == [
        "stages.0.layers.0.attention.projection.w_k",
        "stages.0.layers.0.attention.projection.w_o",
    ]


REFUSED = {
    "queries for several heads of keys": (["kv_heads=2", "share=qk", "relative=4"], "kv_heads (2) must equal heads (4)"),
    "rotation alone": (["share=qkv", "kv_heads=4"], "rope leaves the logits of share: qkv the same"),
    "that names the field": (["share=qk", "kv_heads=4"], "set 'relative' or 'rope: null'"),
    "heads that do not divide": (["kv_heads=3"], "heads (4) is not divisible by kv_heads (3)"),
}


@pytest.mark.parametrize(("overrides", "says"), REFUSED.values(), ids=REFUSED)
def test_refused(overrides, says):
    with pytest.raises(UserError) as refusal:
        load_model("shared_kv", [f"{PROJECTION}.{override}" for override in overrides])
    assert says in str(refusal.value) and str(refusal.value).count("\n") == 0


MEMORIES = {
    "dmc": ("{kind: dmc}", "{kind: merge_decision, compression: 4}", "writes keys alone"),
    "kvm": ("{kind: kvm, chunk: 4, rotated: 16}", "null", "writes keys alone"),
    "taylor": ("{kind: taylor, chunk: 8}", "null", "rotate too late"),
    "quantized": ("{kind: quantized}", "null", "rotated when read"),
    "bounded": ("{kind: bounded, budget: 8}", "{kind: dynamic_mask}", "looks at values"),
}


@pytest.mark.parametrize(("memory", "retention", "says"), MEMORIES.values(), ids=MEMORIES)
def test_memories_that_need_more_than_keys(memory, retention, says):
    with pytest.raises(UserError, match=says):
        weights(load_model("shared_kv", [f"layer.attention.memory={memory}", f"layer.attention.retention={retention}"]))


@pytest.mark.parametrize(("model", "retention"), [("shared_kv", "{kind: key_norm}"), ("shared_qkv", "{kind: h2o}")])
def test_bounded_slots_of_keys_alone(model, retention):
    """Steps equal the parallel form, the relative term and the rotation following each key's own index."""
    memory = ["layer.attention.memory={kind: bounded, budget: 7}", f"layer.attention.retention={retention}"]
    architecture = Architecture(model, load_model(model, memory))
    tokens, places = architecture.tokens(), np.tile(np.arange(24, dtype=np.int32), (2, 1))
    state, found = architecture.init_state(2, 24), []
    for i in range(24):
        logits, state = architecture.decode(tokens[:, i : i + 1], places[:, i : i + 1], state)
        found.append(logits)
    np.testing.assert_allclose(np.concatenate(found, axis=1), architecture.logits(tokens, places), rtol=1e-4, atol=3e-5)
