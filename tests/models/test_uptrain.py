"""What a smaller cache is made of: against plain formulas, and exactly where nothing is lost."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mnemax.configs.load import load_model
from mnemax.configs.schema import ModelConfig
from mnemax.models.params import Params, bind, init_params, weights
from mnemax.models.uptrain import Unfit, convert, moments
from mnemax.models.uptrain.mla import factor, shared_key

PROJECTION = "layer.attention.projection"
W = "stages.0.layers.0.attention.projection."
MHA = ("stages.0.repeat=4",)
TOKENS = jnp.asarray(np.random.default_rng(7).integers(0, 264, (2, 24), np.int32))


def random_params(config: ModelConfig, *, scales: float = 0.3) -> Params:
    """Every weight matters; `scales`: how far vectors are from 1."""
    rng = np.random.default_rng(0)
    values = {}
    for name, weight in weights(config).items():
        inputs = weight.shape[int(weight.stacked) :][: weight.contract]
        noise = rng.standard_normal(weight.shape)
        values[name] = jnp.asarray(noise / np.sqrt(np.prod(inputs)) if inputs else 1 + scales * noise, jnp.float32)
    return values


@functools.cache
def mha() -> tuple[ModelConfig, Params]:
    return load_model("mha"), random_params(load_model("mha"))


def converted(config: ModelConfig, params: Params, target: ModelConfig) -> Params:
    new = convert(config, params, target, moments(config, params))
    assert {name: value.shape for name, value in new.items()} == {name: w.shape for name, w in weights(target).items()}
    return new


def logits(config: ModelConfig, params: Params) -> jax.Array:
    return jax.jit(lambda params: bind(config, params)(TOKENS)[0])(params)


@pytest.mark.parametrize(
    "fields", [(), ("qkv_bias=true", "qk_norm=head", "taps=2"), ("qk_norm=joint", "value_width=8")], ids=["plain", "more", "joint"]
)
def test_equal_heads_become_one_and_nothing_changes(fields):
    config, target = (load_model("mha", [f"{PROJECTION}.{field}" for field in (*fields, f"kv_heads={K}")]) for K in (4, 2))
    params = random_params(config)
    for name, weight in weights(config).items():
        if "kv_heads" in weight.axes:  # two and two alike
            at = weight.axes.index("kv_heads")
            params[name] = jnp.repeat(jnp.take(params[name], jnp.array([0, 2]), axis=at), 2, axis=at)
    new = converted(config, params, target)
    np.testing.assert_array_equal(new[W + "w_k"], params[W + "w_k"][..., ::2, :])
    np.testing.assert_allclose(logits(target, new), logits(config, params), rtol=1e-4, atol=1e-4)


def test_the_mean_over_heads_then_layers_in_other_stages():
    config, params = load_model("mha", MHA), random_params(load_model("mha", MHA))
    stages = "stages=[{layers: [{}]}, {layers: [{attention: {write: a}}]}, {repeat: 2, layers: [{attention: {read: a}}]}]"
    new = converted(config, params, load_model("mha", [stages, f"{PROJECTION}.kv_heads=2"]))
    for name in ("w_k", "w_v"):
        old = np.asarray(params[W + name], np.float64)
        pairs = old.reshape(4, 64, 2, 2, 16).mean(3)
        np.testing.assert_allclose(new[W + name][0], pairs[0], rtol=1e-6)
        np.testing.assert_allclose(
            new["stages.1.layers.0.attention.projection." + name][0], pairs[1:].mean(0), rtol=1e-5, atol=1e-7
        )
    for name in ("attention.projection.w_q", "attention.projection.w_o", "feedforward.w_up", "attention_norm.scale"):
        np.testing.assert_array_equal(new["stages.2.layers.0." + name], params["stages.0.layers.0." + name][2:])
    np.testing.assert_array_equal(new["embedding"], params["embedding"])


def test_pairs_of_layers_and_pairs_of_pairs():
    four_layers, pair = load_model("mha", MHA), load_model("cla", [f"{PROJECTION}.kv_heads=4"])
    three = ", ".join(["{attention: {read: a}}"] * 3)
    four = load_model("cla", [f"{PROJECTION}.kv_heads=4", f"stages=[{{layers: [{{attention: {{write: a}}}}, {three}]}}]"])
    params = random_params(four_layers)
    two = converted(four_layers, params, pair)
    old = np.asarray(params[W + "w_k"], np.float64)
    np.testing.assert_allclose(two[W + "w_k"], [old[:2].mean(0), old[2:].mean(0)], rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(converted(pair, two, four)[W + "w_k"][0], old.mean(0), rtol=1e-5, atol=1e-7)


def test_layers_that_read_an_upper_one():
    config, params = mha()
    stage = "{passes: 4, layers: [{attention: {read: top}}, {attention: {read: top}}, {attention: {write: top}}]}"
    new = converted(config, params, load_model("mha", [f"stages=[{stage}]"]))
    np.testing.assert_allclose(
        new["stages.0.layers.2.attention.projection.w_v"][0], params[W + "w_v"].mean(0), rtol=1e-5, atol=1e-7
    )


def test_new_memories_and_retentions_begin_as_initialised():
    config, params = mha()
    target = load_model("mha", ["layer.attention={memory: {kind: bounded, budget: 16}, retention: {kind: gate, capacity: 8}}"])
    new = converted(config, params, target)
    assert any(".retention." in name for name in new)
    assert all(np.array_equal(new[name], params[name]) for name in params)
    assert converted(target, new, config).keys() == params.keys()


def random_moment(rng: np.random.Generator, width: int) -> np.ndarray:
    a = rng.standard_normal((3 * width, width)) * np.linspace(0.1, 2, width)
    return a.T @ a / len(a)


def test_a_factor_is_the_nearest_of_its_rank():
    rng = np.random.default_rng(0)
    matrix, moment = rng.standard_normal((12, 30)), random_moment(rng, 12)
    down, up = factor(matrix, moment, 5)
    root = np.linalg.cholesky(moment).T  # root^T root = moment
    error = np.square(root @ (matrix - down @ up)).sum()
    assert error == pytest.approx(np.square(np.linalg.svd(root @ matrix)[1][5:]).sum())  # Eckart and Young 1936
    gram = down.T @ down
    np.testing.assert_allclose(gram, gram[0, 0] * np.eye(5), atol=1e-12)
    assert np.trace(down.T @ moment @ down) == pytest.approx(5)
    np.testing.assert_allclose(np.matmul(*factor(matrix, moment, 12)), matrix)


def test_a_shared_key_is_the_nearest():
    rng = np.random.default_rng(0)
    random = lambda *shape: rng.standard_normal(shape) + 1j * rng.standard_normal(shape)  # noqa: E731
    keys, queries, group, moment = random(12, 3, 2), random(12, 6, 2), np.repeat(np.arange(3), 2), random_moment(rng, 12)
    key, asked = shared_key(keys, queries, group, moment)
    root = np.linalg.cholesky(moment).T
    for p in range(2):
        factors = asked[0, ::2, p] / queries[0, ::2, p]
        np.testing.assert_allclose(asked[..., p], queries[..., p] * factors[group], rtol=1e-9)
        stood_for = key[:, None, p] * factors.conj()
        error = np.square(np.abs(root @ (keys[..., p] - stood_for))).sum()
        assert error == pytest.approx(np.square(np.linalg.svd(root @ keys[..., p])[1][1:]).sum())
    key, asked = shared_key(np.repeat(keys[:, :1], 3, axis=1), queries, group, moment)
    np.testing.assert_allclose(key, keys[:, 0])
    np.testing.assert_allclose(asked, queries)


@pytest.mark.parametrize("query_latent", ["null", "64"])
def test_a_latent_as_wide_as_the_model_loses_nothing(query_latent):
    """Where norms have no scales: the latent is then x, turned, and of one length. Rotated keys of all heads must be alike."""
    config = load_model("mha", [f"{PROJECTION}.rope.fraction=0.5", f"{PROJECTION}.scale=0.3"])
    params = random_params(config, scales=0)
    key = np.array(params[W + "w_k"])
    for h, turn in enumerate(np.exp(1j * np.array([0.0, 1.0, 2.0, 3.0])) * [1, 0.5, 2, 1.5]):
        pair = (key[:, :, 0, :4] + 1j * key[:, :, 0, 4:8]) * turn
        key[:, :, h, :8] = np.concatenate([pair.real, pair.imag], axis=-1) if h else key[:, :, 0, :8]
    params[W + "w_k"] = jnp.asarray(key)
    sizes = f"heads: 4, latent_width: 64, query_latent: {query_latent}, nope_width: 8, rope_width: 8, value_width: 16"
    target = load_model("mha", [f"{PROJECTION}={{kind: mla, {sizes}}}"])
    new = converted(config, params, target)
    np.testing.assert_allclose(logits(target, new), logits(config, params), rtol=1e-3, atol=1e-3)


def test_moments_are_those_of_the_layers_inputs():
    config, params = mha()
    batch = {"inputs": TOKENS, "positions": np.broadcast_to(np.arange(24, dtype=np.int32), TOKENS.shape)}
    guessed, found = moments(config, params), moments(config, params, [batch, batch])
    for i in range(3):
        scale = np.asarray(params["stages.0.layers.0.attention_norm.scale"][i])
        np.testing.assert_allclose(guessed[i], np.diag(scale**2), rtol=1e-6)
    # What a model of one layer gives before the unembedding is, under the second's norm, what the second attends over.
    one = {name: value[:1] if name.startswith("stages") else value for name, value in params.items()}
    one["norm.scale"] = params["stages.0.layers.0.attention_norm.scale"][1]
    x = np.asarray(bind(load_model("mha", ["stages.0.repeat=1"]), one).hidden(TOKENS)[0], np.float64).reshape(-1, 64)
    np.testing.assert_allclose(found[1], (2 * x.T @ x + 64 * guessed[1]) / (2 * len(x) + 64), rtol=1e-4, atol=1e-5)


MLA = f"{PROJECTION}={{kind: mla, heads: 4, latent_width: 24, nope_width: 8, rope_width: 8, value_width: 16}}"
SHARED = "stages=[{layers: [{attention: {write: a}}, {attention: {read: a}}, {}]}]"
REFUSED = {
    "width": (["width=32"], "^width is 64 before and 32 after$"),
    "norm": (["norm.eps=1e-3"], "^norm.eps is 1e-06 before and 0.001 after$"),
    "depth": (["stages.0.repeat=2"], "^there are 3 layers before and 2 after$"),
    "feed-forward": (["layer.feedforward={kind: mlp, width: 8}"], "^layer 0: feedforward is glu before and mlp after$"),
    "heads": ([f"{PROJECTION}.heads=8"], "^layer 0: projection.heads is 4 before and 8 after$"),
    "theta": ([f"{PROJECTION}.rope.theta=5"], r"^layer 0: projection.rope.theta is 10000.0 before and 5.0 after$"),
    "more heads": ([f"{PROJECTION}.heads=8", f"{PROJECTION}.kv_heads=8"], "projection.heads is 4 before and 8"),
    "a sink": (["layer.attention.sink_logits=true"], "the model before lacks the weight 'layers.0.attention.sink'"),
    "a kind": (
        ["layer.attention={projection: {kind: mamba2, heads: 4, head_width: 16, state_width: 16}, memory: {kind: linear}}"],
        "^layer 0: projection is gqa before and mamba2 after, and only these change: gqa to gqa, gqa to mla, mla to tpla$",
    ),
    "a latent too wide": ([MLA, f"{PROJECTION}.latent_width=65"], "latent_width is 65 after, more than the rank 64"),
    "widths": ([MLA, f"{PROJECTION}.nope_width=16"], r"head_width is 16 before and 24 \(nope_width \+ rope_width\) after"),
    "values": ([MLA, f"{PROJECTION}.value_width=8"], "value_width is 16 before and 8 after"),
    "turns": (
        [MLA, f"{PROJECTION}.rope.theta=7"],
        "turns a pair by 0.6148 radians a token after, and no pair that is left does before; rope.theta 100 keeps the fastest",
    ),
    "shared latents": (
        [MLA, SHARED],
        "^layer 0: its memory is shared with another layer, which is not carried over from gqa to mla$",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_carried_over(name):
    (overrides, words), (config, params) = REFUSED[name], mha()
    with pytest.raises(Unfit, match=words):
        convert(config, params, load_model("mha", overrides), moments(config, params))


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ([f"{PROJECTION}.kv_heads=2"], [], "kv_heads is 2 before and 4 after, which does not divide it"),
        ([f"{PROJECTION}.qk_norm=head"], [MLA], "qk_norm is head before, and mla has none"),
        ([f"{PROJECTION}.rope=null"], [MLA], "rope.fraction 0 rotates none"),
        ([SHARED], [], "^layer 1: it reads another layer's memory"),
    ],
)  # fmt: skip
def test_what_is_not_there_before(before, after, words):
    config = load_model("mha", before)
    params = random_params(config)
    with pytest.raises(Unfit, match=words):
        convert(config, params, load_model("mha", after), moments(config, params))


def test_slices_keep_the_attention_of_the_whole():
    """One slice: other coordinates of the same latent change nothing."""
    before = mla_model("mla")
    params = {name: value + 0.1 for name, value in init_params(before, jax.random.key(0)).items()}
    after = mla_model("tpla", slices=1)
    converted = convert(before, params, after, moments(before, params))
    tokens = jnp.asarray(np.random.default_rng(0).integers(0, 64, (2, 9), np.int32))
    np.testing.assert_allclose(bind(after, converted)(tokens)[0], bind(before, params)(tokens)[0], atol=1e-4)
    assert not np.allclose(
        converted["stages.0.layers.0.attention.projection.w_c"], params["stages.0.layers.0.attention.projection.w_c"]
    )


def mla_model(kind: str, **fields) -> ModelConfig:
    sizes = {"heads": 2, "latent_width": 8, "nope_width": 8, "rope_width": 4, "value_width": 8}
    layer = {"attention": {"projection": {"kind": kind} | sizes | fields}, "feedforward": {"kind": "glu", "width": 16}}
    model = {"width": 32, "vocab_size": 64, "max_length": 64, "dtype": "float32"}
    return ModelConfig.model_validate(model | {"stages": [{"repeat": 2, "layers": [layer]}]})
