"""Export then import gives back the same parameters, and transformers gives the same logits."""

import numpy as np
import pytest

from mnemax.errors import UserError
from mnemax.models import hf


@pytest.fixture
def exported(architecture, tmp_path):
    """The folder of an export, where a family holds the architecture."""
    try:
        hf.save(tmp_path / "exported", architecture.config, architecture.params)
    except UserError as reason:
        pytest.skip(str(reason))
    return tmp_path / "exported"


def test_import_gives_back_the_parameters(architecture, exported):
    _, params = hf.load(exported)
    assert params.keys() == architecture.params.keys()
    for name, value in architecture.params.items():
        assert np.array_equal(params[name], value), name


@pytest.mark.torch
def test_transformers_gives_the_logits(architecture, exported):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    tokens = architecture.tokens()
    with torch.no_grad():
        theirs = transformers.AutoModelForCausalLM.from_pretrained(exported)(torch.tensor(tokens, dtype=torch.long)).logits
    places = np.tile(np.arange(tokens.shape[1], dtype=np.int32), (len(tokens), 1))
    np.testing.assert_allclose(architecture.logits(tokens, places), theirs.numpy(), atol=1e-4, rtol=0)
