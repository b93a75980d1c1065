"""Layer-condensed sharing against token-by-token, the nine configurations of the unified framework, and prefill's early exit."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mnemax.configs.load import load_model
from mnemax.configs.schema import ModelConfig
from mnemax.layers.attention import Attention, Published
from mnemax.layers.memories import Place, Slots
from mnemax.layers.param import Init
from mnemax.models.params import bind, init_params, unstack, weights

T = 12
TOKENS = jnp.asarray(np.random.default_rng(0).integers(0, 264, (2, T), np.int32))
ATTENTION = {"projection": {"kind": "gqa", "heads": 4, "kv_heads": 2, "head_width": 16}}


def model(stages: list[dict], **fields) -> ModelConfig:
    layer = {"attention": ATTENTION, "feedforward": {"kind": "glu", "width": 32}}
    sizes = {"width": 32, "vocab_size": 264, "max_length": 64, "dtype": "float32"}
    return ModelConfig.model_validate(sizes | {"layer": layer, "stages": stages} | fields)


def group(target: int, layers: int, passes: int) -> dict:
    """Layers that all read what the target writes."""
    role = lambda i: {"write": "kv"} if i == target else {"read": "kv"}  # noqa: E731
    stage = {"layers": [{"attention": role(i)} for i in range(layers)]}
    return stage | ({"passes": passes} if target else {})


def partitions(target: int, passes: int) -> dict[str, ModelConfig]:
    ordinary = {"layers": [{}]}
    return {
        "pizza": model([ordinary, group(target, 3, passes)]),
        "sandwich": model([ordinary, group(target, 3, passes), ordinary]),
        "lasagna": model([group(target, 3, passes) | {"repeat": 2}]),
    }


def logits(config: ModelConfig, params, tokens=TOKENS):
    return np.asarray(jax.jit(lambda p: bind(config, p)(tokens)[0])(params))


def stepwise(config: ModelConfig, params):
    step = jax.jit(lambda p, token, state: bind(config, p)(token, None, state))
    state, found = bind(config, params).init_state(2, T), []
    for t in range(T):
        one, state = step(params, TOKENS[:, t : t + 1], state)
        found.append(one)
    return np.concatenate(found, axis=1)


SLOW = [pytest.param(where, i, marks=pytest.mark.slow) for where in ("pizza", "sandwich", "lasagna") for i in range(3)]


@pytest.mark.parametrize(("partition", "target"), [("lasagna", 1), *(p for p in SLOW if p.values != ("lasagna", 1))])
def test_nine_configurations_token_by_token(partition, target):
    """As many passes as tokens give what decoding gives."""
    config = partitions(target, passes=T)[partition]
    params = init_params(config, jax.random.key(0))
    np.testing.assert_allclose(logits(config, params), stepwise(config, params), atol=2e-5)


def test_fewer_passes_come_close():
    """n passes are exact for the first n tokens, and differ after them."""
    exact, few = (partitions(2, passes)["sandwich"] for passes in (T, 4))
    params = {name: 5 * value for name, value in init_params(exact, jax.random.key(0)).items()}
    difference = np.abs(logits(exact, params) - logits(few, params)).max(axis=(0, 2))
    assert difference[:4].max() < 1e-5
    assert difference[4:].max() > 1e-3


def test_who_may_attend_to_nothing_gives_exactly_nothing():
    """Of a reader of an upper layer, the first token of each document."""
    config = load_model("lckv")
    reader = Attention(config.layers[1].attention, config, Init(config, jax.random.key(0)))
    rng = np.random.default_rng(0)
    entry = {name: jnp.asarray(rng.standard_normal((2, T, 2, 16)), jnp.float32) for name in "kv"}
    starts = np.array([[0] * T, [0] * 5 + [5] * (T - 5)])
    place = Place(jnp.arange(T), jnp.asarray(np.arange(T) - starts))
    bus = {"top": Published(Slots(entry, jnp.arange(T)[None], aligned=True, strict=True), entry)}
    out = np.asarray(reader(jnp.asarray(rng.standard_normal((2, T, 64)), jnp.float32), place, None, bus, "auto")[0])
    nothing = np.asarray(place.positions) == 0
    assert (out[nothing] == 0).all()
    assert (out[~nothing] != 0).all()


@pytest.mark.parametrize("name", ["llama", "yoco", "cla", "lckv", "short_convolution", "sink_logits", "depth_merged"])
def test_early_exit_changes_nothing(name):
    config = load_model(name)
    params = init_params(config, jax.random.key(0))

    @partial(jax.jit, static_argnums=1)
    def prefill(params, last):
        model = bind(config, params)
        x, state, _ = model.hidden(TOKENS, None, model.init_state(2, 2 * T), last=last)
        return x[:, -1:], state

    whole, early = prefill(params, False), prefill(params, True)
    jax.tree.map(partial(np.testing.assert_allclose, atol=1e-5), early, whole)


@pytest.mark.slow
def test_flops_of_a_prompt_are_the_self_decoders():
    """YOCO at 8k tokens, by the compiler's count: within 10% of a model of the self-decoder alone."""

    def flops(config: ModelConfig) -> float:
        described = weights(config)
        params = {n: jax.ShapeDtypeStruct(w.shape, jnp.float32) for n, w in described.items()}
        tokens = jax.ShapeDtypeStruct((1, 8192), jnp.int32)

        def prefill(params, tokens):
            model = bind(config, unstack(params, described))
            return model.hidden(tokens, None, model.init_state(1, 8192), last=True)

        cost = jax.jit(prefill).lower(params, tokens).compile().cost_analysis()
        assert cost is not None
        return cost["flops"]

    windows = {"repeat": 4, "layers": [{"attention": {"memory": {"kind": "window", "size": 256}}}]}
    cross = [{"layers": [{"attention": {"write": "all"}}]}, {"repeat": 3, "layers": [{"attention": {"read": "all"}}]}]
    sizes = {"max_length": 8192, "width": 64}
    whole, alone = flops(model([windows, *cross], **sizes)), flops(model([windows], **sizes))
    print(f"YOCO {whole:.4g}, its self-decoder {alone:.4g}: {whole / alone:.3f}x")
    assert whole < 1.1 * alone


def residual_of(leaf: str) -> list[dict]:
    attentions = [{"write": "first"}, {"entry_residual": {"of": "first", "leaves": [leaf]}}]
    return [{"layers": [{"attention": attention} for attention in attentions]}]


def gated(kind: str) -> list[dict]:
    projection = {"kind": kind, "heads": 4, "head_width": 16}
    return [{"layers": [{"attention": {"projection": projection, "memory": {"kind": "linear"}, "output_gate": "head"}}]}]


def of_a_matrix(**reader) -> list[dict]:
    """A layer that reads a matrix that another writes."""
    memory = {"kind": "linear"}
    if reader.get("kind") is None:
        projection, own = {"kind": "gqa", "heads": 4, "kv_heads": 4, "head_width": 16, "rope": None}, reader.pop("projection", {})
    else:
        projection, own = {"kind": reader.pop("kind"), "heads": 4, "head_width": 16}, {}
    writer = {"attention": {"projection": projection, "memory": memory, "write": "m"}}
    return [{"layers": [writer, {"attention": {"projection": projection | own, "read": "m"} | reader}]}]


def other_rope() -> list[dict]:
    return [{"layers": [{"attention": {"write": "kv"}}, {"attention": {"read": "kv", "projection": {"rope": {"theta": 5.0}}}}]}]


@pytest.mark.parametrize(
    ("stages", "words"),
    [
        ([group(2, 3, 4) | {"passes": None}], "no layer before it writes 'kv'"),
        ([group(0, 3, 4) | {"passes": 4}], "passes (4) has no use"),
        ([{"layers": [{"attention": {"write": "a"}}, {"attention": {"write": "a"}}]}], "the name 'a' is written twice"),
        (
            [{"layers": [{"attention": {"entry_residual": {"of": "first"}}}]}],
            "entry_residual.of: no layer before it writes 'first'",
        ),
        ([{"layers": [{}], "trained_passes": 3}], "trained_passes (3) are the last of 'passes', which is not set"),
        (residual_of("z"), "entry_residual.leaves: 'z' has shape none here and none where 'first' is written"),
        (gated("gated_retention"), "output_gate: head would gate what projection gated_retention gates itself"),
        (of_a_matrix(sink_logits=True), "are of logits, of which memory linear"),
        (of_a_matrix(projection={"softcap": 30.0}), "are of logits, of which memory linear"),
        (of_a_matrix(kind="gated_retention", output_gate="head"), "would gate what projection gated_retention gates itself"),
        (other_rope(), "projection cannot read 'kv': rope is"),
    ],
)
def test_bad_plans(stages, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        model(stages)
