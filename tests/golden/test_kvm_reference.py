"""The golden key-value means against itself: both forms agree, nothing sees ahead, and slots keep to their schedule."""

from dataclasses import replace

import numpy as np
import pytest

from tests.golden.kvm import Decoder, Settings, fixed, power, prefill, saturating

BUDGETS = {"fixed": fixed(11), "power": power(2.0, 0.5, least=4), "saturating": saturating(20), "few": fixed(4)}
PLAIN = Settings(chunk=4, budget=fixed(4))
SWITCHES = {
    "plain": {},
    "no sinks": {"sinks": 0},
    "gated appends": {"gate_appends": True},
    "rotated, masked again": {"rotated": 2, "remask": True, "bias": 0.3},
    "raw sums": {"value_norm": False},
    "three chunks": {"window_chunks": 3},
    "temperatures": {"state_temperature": 0.7, "window_temperature": 1.3},
}


def head(length: int, seed: int = 0):
    rng = np.random.default_rng(seed)
    q, k, v = (rng.standard_normal(shape) for shape in ((length, 2, 6), (length, 6), (length, 5)))
    return q, k, v, np.exp(0.3 * rng.standard_normal(length))


@pytest.mark.parametrize("budget", BUDGETS.values(), ids=BUDGETS)
@pytest.mark.parametrize("switch", SWITCHES.values(), ids=SWITCHES)
def test_steps_equal_prefill(budget, switch):
    settings, parts = replace(PLAIN, budget=budget, **switch), head(43)
    decoder = Decoder(settings)
    steps = np.stack([decoder.step(*token) for token in zip(*parts, strict=True)])
    np.testing.assert_allclose(steps, prefill(settings, *parts)[0], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("budget", BUDGETS.values(), ids=BUDGETS)
def test_nothing_sees_ahead(budget):
    settings, last = replace(PLAIN, budget=budget), 21
    changed = [
        np.where((np.arange(43) > last).reshape(-1, *(1,) * (a.ndim - 1)), b, a) for a, b in zip(head(43), head(43, 1), strict=True)
    ]
    before, after = prefill(settings, *head(43))[0], prefill(settings, *changed)[0]
    assert np.array_equal(before[: last + 1], after[: last + 1])
    assert not np.allclose(before[last + 1 :], after[last + 1 :])


@pytest.mark.parametrize("budget", BUDGETS.values(), ids=BUDGETS)
def test_slots_keep_to_the_schedule(budget):
    """What the schedule gives the tokens read by then, and never more than were folded."""
    seen = prefill(replace(PLAIN, budget=budget), *head(64))[1]
    assert seen[:2] == [0, 0]
    for chunk, slots in enumerate(seen[2:], start=2):
        assert slots == max(4, min(budget(4 * chunk), 4 * (chunk - 1)))


def test_a_state_of_every_token_is_full_attention():
    """A slot for each token, keys that the norm leaves as they are, own lengths: nothing is lost."""
    q, k, v, g = head(30)
    k -= k.mean(-1, keepdims=True)
    k /= np.sqrt((k**2).mean(-1, keepdims=True))
    settings = replace(PLAIN, budget=power(1.0, 1.0), eps=0.0)
    found = prefill(settings, q, k, v, g)[0]
    logits = np.einsum("tgh,sh->tgs", q, k) / np.sqrt(6)
    p = np.exp(logits) * np.tril(np.ones((30, 30)))[:, None]
    np.testing.assert_allclose(found, p / p.sum(-1, keepdims=True) @ v, rtol=1e-10)
