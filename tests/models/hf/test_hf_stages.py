"""Lists of layers as stages."""

from hypothesis import given
from hypothesis import strategies as st

from mnemax.models.hf import stages_from_layers


def stages(pattern):
    found = stages_from_layers([{"kind": letter} for letter in pattern])
    return [(stage["repeat"], "".join(layer["kind"] for layer in stage["layers"])) for stage in found]


def test_known_patterns():
    assert stages("g" * 32) == [(32, "g")]
    assert stages("lg" * 13) == [(13, "lg")]  # Gemma-2
    assert stages("lllllg" * 4 + "ll") == [(4, "lllllg"), (2, "l")]  # Gemma-3 1B
    assert stages("lllllg" * 5 + "llll") == [(5, "lllllg"), (4, "l")]  # Gemma-3 4B
    assert stages("g" * 21 + "l" * 7) == [(21, "g"), (7, "l")]  # Qwen2 with max_window_layers
    assert stages("abc") == [(1, "abc")]


@given(st.text("lg", min_size=1, max_size=14))
def test_stages_spell_out_to_the_layers(pattern):
    found = stages(pattern)
    assert "".join(letters * repeat for repeat, letters in found) == pattern
    assert sum(len(letters) for _, letters in found) <= len(pattern)
