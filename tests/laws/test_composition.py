"""Any projection with any memory, written or shared: either it is refused in a sentence when the configuration is read, or decoding
in chunks equals the parallel form."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pydantic import ValidationError

from mnemax import registry
from mnemax.configs.load import load_model, shipped
from mnemax.configs.schema import ModelConfig
from mnemax.errors import UserError
from mnemax.evaluation.accounting import live_bytes, state_bytes
from mnemax.models.params import bind, init_params
from tests.laws.conftest import ALONE, OF_WHOLE_PROMPTS

CHUNKS = (1, 6, 1, 1, 7, 1)
T = sum(CHUNKS)


def attentions() -> list[dict]:
    """Of every shipped model the layers, as they are written there."""
    models = [load_model(name, ["dtype=float32"]) for name in shipped("models")]
    return [
        layer.attention.model_dump(exclude={"write", "read", "attends", "entry_residual"})
        for model in models
        for layer in model.layers
    ]


def first_of_each(choice: str, found: list[dict]) -> dict[str, dict]:
    return {attention[choice]["kind"]: attention for attention in reversed(found) if attention[choice] is not None}


FOUND = attentions()
PROJECTIONS, MEMORIES = first_of_each("projection", FOUND), first_of_each("memory", FOUND)
PAIRS = [(projection, memory) for projection in PROJECTIONS for memory in MEMORIES]
SHARES = ("own", "shared", "left")
# By default each in one way; the rest with `-m slow`.
QUICK = {
    ("gqa", "linear", "own"),
    ("gqa", "kvm", "shared"),
    ("mla", "bounded", "left"),
    ("mla", "quantized", "own"),
    ("gla", "window", "shared"),
    ("shared", "bounded", "left"),
    ("key_driven", "bounded", "own"),
}


def built(projection: str, memory: str, share: str) -> ModelConfig:
    """Two layers, or a layer and one that reads it (`left`: it alone); below them what their memory leans on."""
    plain, kept = PROJECTIONS[projection]["projection"], MEMORIES[memory]
    own = {"projection": plain, "memory": kept["memory"], "retention": kept["retention"]}
    second = own if share == "own" else {"projection": plain, "read": "kv"}
    first = own | {"own": {}, "shared": {"write": "kv"}, "left": {"write": "kv", "attends": False}}[share]
    layers = [{"attention": first}, {"attention": second}]
    if "of" in kept["memory"]:  # a memory that leans on a lower layer's
        layers.insert(0, {"attention": {"projection": plain, "write": kept["memory"]["of"]}})
    feedforward = {"kind": "glu", "width": 32}
    sizes = {"width": 64, "vocab_size": 64, "max_length": 256, "dtype": "float32", "norm": {"eps": 1e-2}}
    stages = [{"layers": [layer | {"feedforward": feedforward} for layer in layers]}]
    return ModelConfig.model_validate(sizes | {"stages": stages})


@pytest.mark.parametrize(
    ("projection", "memory", "share"),
    [pytest.param(*pair, share, marks=() if (*pair, share) in QUICK else pytest.mark.slow) for pair in PAIRS for share in SHARES],
)
def test_pairs(projection, memory, share):
    try:
        config = built(projection, memory, share)
        params = init_params(config, jax.random.key(0))
    except (ValidationError, UserError) as refusal:
        said = str(refusal)
        assert any(word in said for word in (projection, memory, "gate", "rope", "retention", "memory.")), said
        return
    tokens = jnp.asarray(np.stack([np.random.default_rng(row).permutation(64)[:T] for row in range(2)]).astype(np.int32))
    run = jax.jit(lambda p, *rows: bind(config, p)(*rows))
    state, found, start = bind(config, params).init_state(2, T), [], 0
    assert live_bytes(state) == state_bytes(config, 2, T)
    for length in CHUNKS:
        logits, state = run(params, tokens[:, start : start + length], None, state)
        found.append(logits)
        start += length
    whole = run(params, tokens)[0]
    np.testing.assert_allclose(np.concatenate(found, axis=1), whole, rtol=1e-3, atol=1e-4)
    if share != "own":  # a prompt that leaves early
        early = jax.jit(
            lambda p: (model := bind(config, p)).logits(model.hidden(tokens, None, model.init_state(2, T), last=True)[0])
        )
        np.testing.assert_allclose(early(params), whole[:, -1:], rtol=1e-3, atol=1e-4)


def test_every_kind_is_among_the_pairs():
    assert set(PROJECTIONS) == set(registry.kinds("projection"))
    assert set(MEMORIES) == set(registry.kinds("memory"))


def test_every_retention_is_under_the_laws():
    assert {*first_of_each("retention", FOUND), *ALONE.values(), *OF_WHOLE_PROMPTS} == set(registry.kinds("retention"))
