"""lm-eval's numbers for a model of ours are those of its own class `hf` for the same model, exported."""

import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from mnemax.configs.schema import ModelConfig
from mnemax.data.config import EmbeddedTokenizer
from mnemax.data.tokenizers import load_tokenizer
from mnemax.errors import UserError
from mnemax.models import hf
from mnemax.models.folder import save_model
from mnemax.models.params import weights

os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
pytest.importorskip("lm_eval", reason="needs lm-eval (the dependency group torch)")
pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("default"),  # lm-eval's and its libraries' own
]

MAX_LENGTH = 96
SPEECH = "Shall I compare thee to a summer's day? Thou art more lovely and more temperate: Rough winds do shake the darling buds. "
CONTINUED = [
    (SPEECH, "And summer's lease hath all too short a date."),
    (SPEECH + "\n  ", "And summer's"),  # spaces move to the continuation
    ("Shall I", " compare"),
    ("Shall I", "compare"),
    ("Shall I th", "ee love"),  # a token across the border
    ("", "Shall I compare thee"),
    ("", "<|endoftext|>Shall I"),
    ("<|endoftext|>Shall", " I"),
    (SPEECH * 5, " And summer's lease"),  # too long by far
    ("O", SPEECH * 2),
]


def tiny(folder: Path) -> Path:
    """The folder of a model with random weights that are nowhere near their initial values."""
    tokenizer = load_tokenizer(EmbeddedTokenizer(vocab_size=2048))
    attention = {"projection": {"kind": "gqa", "heads": 4, "kv_heads": 2, "head_width": 8}, "memory": {"kind": "full"}}
    layer = {"attention": attention, "feedforward": {"kind": "glu", "width": 64}}
    config = ModelConfig.model_validate(
        {
            "width": 32,
            "vocab_size": tokenizer.vocab_size,
            "max_length": MAX_LENGTH,
            "dtype": "float32",
            "stages": [{"repeat": 2, "layers": [layer]}],
        }
    )
    rng = np.random.default_rng(0)
    params = {
        name: jnp.asarray(0.25 * rng.standard_normal(weight.shape) + name.endswith("scale"), jnp.float32)
        for name, weight in weights(config).items()
    }
    save_model(folder, config, params)
    tokenizer.save(folder / "tokenizer")
    hf.save(folder.with_name("exported"), config, params, tokenizer=tokenizer, dtype="float32")
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny(tmp_path_factory.mktemp("lm_eval") / "run")


@pytest.fixture(scope="module")
def ours(folder):
    from mnemax.evaluation.lm_eval import MnemaxLM

    return MnemaxLM(str(folder), batch_size=4)


@pytest.fixture(scope="module")
def theirs(folder):
    from lm_eval.models.huggingface import HFLM

    # Without its cache, which takes another position's logits where requests of one input ask for unequally many tokens.
    return HFLM(str(folder.with_name("exported")), dtype="float32", device="cpu", batch_size=4, logits_cache=False)


def requests(kind, arguments):
    from lm_eval.api.instance import Instance

    return [Instance(kind, {}, args, i) for i, args in enumerate(arguments)]


def test_loglikelihood(ours, theirs):
    # With the likeliest continuation among them, so that both answers of is_greedy occur.
    likeliest = theirs.generate_until(requests("generate_until", [("Shall I", {"until": [], "max_gen_toks": 3})]))[0]
    asked = requests("loglikelihood", [*CONTINUED, ("Shall I", likeliest)])
    mine, wanted = ours.loglikelihood(asked, disable_tqdm=True), theirs.loglikelihood(asked, disable_tqdm=True)
    np.testing.assert_allclose([logp for logp, _ in mine], [logp for logp, _ in wanted], rtol=1e-4)
    assert [greedy for _, greedy in mine] == [greedy for _, greedy in wanted]
    assert {greedy for _, greedy in mine} == {False, True}


def test_loglikelihood_of_whole_texts(ours, theirs):
    asked = requests("loglikelihood_rolling", [(SPEECH,), ("",), (SPEECH * 7,), ("<|endoftext|>O",)])
    mine, wanted = ours.loglikelihood_rolling(asked, disable_tqdm=True), theirs.loglikelihood_rolling(asked, disable_tqdm=True)
    np.testing.assert_allclose(mine, wanted, rtol=1e-4)


def test_generation(ours, theirs):
    contexts = [SPEECH, "Shall I", SPEECH * 5, "O", "Rough winds"]
    first = {"until": ["e"], "max_gen_toks": 12, "do_sample": False}
    second = {"until": [" ", "\n"], "max_gen_toks": 20}
    asked = requests("generate_until", [(context, dict(settings)) for context in contexts for settings in (first, second)])
    texts = ours.generate_until(asked, disable_tqdm=True)
    assert texts == theirs.generate_until(asked, disable_tqdm=True)
    assert not any("e" in text for text in texts[::2])
    assert any(len(text) > 1 for text in texts)
    # By itself, since `hf` looks at the first text of a batch alone to see whether bos is written there already.
    asked = requests("generate_until", [("<|endoftext|>Thou", dict(second))])
    assert ours.generate_until(asked, disable_tqdm=True) == theirs.generate_until(asked, disable_tqdm=True)


def test_an_end_token_ends_its_row_alone(ours, monkeypatch):
    settings = {"until": [], "max_gen_toks": 8}
    asked = requests("generate_until", [("Shall I", dict(settings)), ("Rough winds", dict(settings))])
    whole = [ours.texts.encode(text) for text in ours.generate_until(asked, disable_tqdm=True)]
    row = next(iter(ours._generator.generate([ours.tok_encode("Shall I")], 8)))
    end = next(token for token in row if token not in whole[1])
    monkeypatch.setattr(ours, "ends", {end})
    short, other = ours.generate_until(asked, disable_tqdm=True)
    assert short == ours.texts.decode(row[: row.index(end)])
    assert ours.texts.encode(other) == whole[1]


def test_sampling_is_honoured(ours):
    def texts(**settings):
        return ours.generate_until(requests("generate_until", [("Shall I", {"until": [], "max_gen_toks": 8, **settings})]), True)

    assert texts(temperature=5.0, do_sample=True, top_k=1) == texts()
    assert texts(temperature=5.0, do_sample=False) == texts()
    np.random.seed(0)
    drawn = [texts(temperature=5.0)[0] for _ in range(3)]
    assert len({*drawn, *texts()}) == 4


def test_the_command(folder, theirs, tmp_path):
    rows = [{"context": context, "choices": [continuation, " never"]} for context, continuation in CONTINUED]
    (tmp_path / "rows.json").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "choice.yaml").write_text(
        f"task: tiny_choice\ndataset_path: json\ndataset_kwargs: {{data_files: {{test: {tmp_path}/rows.json}}}}\n"
        "test_split: test\noutput_type: multiple_choice\ntarget_delimiter: ''\ndoc_to_text: '{{context}}'\n"
        "doc_to_choice: '{{choices}}'\ndoc_to_target: 0\n"
    )
    command = ["--model", "mnemax", "--model_args", f"path={folder},batch_size=4,dtype=float32", "--tasks", "tiny_choice"]
    command += ["--include_path", str(tmp_path), "--output_path", str(tmp_path / "out"), "--log_samples"]
    environment = os.environ | {"HF_DATASETS_CACHE": str(tmp_path / "cache"), "JAX_PLATFORMS": "cpu"}
    run = [Path(sys.executable).with_name("lm_eval"), *command]
    done = subprocess.run(run, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "tiny_choice" in done.stdout
    samples = [json.loads(line) for line in next(tmp_path.glob("out/*/samples_*")).read_text().splitlines()]
    got = [float(answer[0][0]) for sample in sorted(samples, key=lambda s: s["doc_id"]) for answer in sample["resps"]]
    pairs = [(row["context"], choice) for row in rows for choice in row["choices"]]
    wanted = theirs.loglikelihood(requests("loglikelihood", pairs), disable_tqdm=True)
    np.testing.assert_allclose(got, [logp for logp, _ in wanted], rtol=1e-4)


def test_the_entry_point_is_the_class():
    from mnemax.evaluation.lm_eval import MnemaxLM

    (entry,) = importlib.metadata.entry_points(group="lm_eval.models", name="mnemax")
    assert entry.load() is MnemaxLM


def test_lm_eval_knows_the_name():
    from lm_eval.api.registry import get_model

    from mnemax.evaluation.lm_eval import MnemaxLM

    assert get_model("mnemax") is MnemaxLM


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"path": "nowhere"}, "nowhere is not a run's folder"),
        ({}, "is not a run's folder"),
        ({"pretrained": "x"}, "has no argument pretrained; it has path, batch_size"),
        ({"batch_size": "auto"}, "batch_size is 'auto'; it must be a whole number from 1"),
        ({"max_length": 97}, r"max_length is 97, more than the model's own \(96\)"),
        ({"dtype": "float8"}, "dtype"),
    ],
)
def test_bad_arguments(folder, arguments, sentence):
    from mnemax.evaluation.lm_eval import MnemaxLM

    with pytest.raises(UserError, match=sentence):
        MnemaxLM(**({"path": str(folder)} if arguments else {}) | arguments)


def test_a_folder_without_tokenizer(folder, tmp_path):
    from mnemax.evaluation.lm_eval import MnemaxLM

    for name in ("model.yaml", "checkpoints"):
        (tmp_path / name).symlink_to(folder / name)
    with pytest.raises(UserError, match="has no tokenizer/"):
        MnemaxLM(str(tmp_path))


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"max_gen_toks": MAX_LENGTH}, "96 new tokens"),
        ({"max_gen_toks": 4, "num_beams": 4}, "num_beams is not supported"),
        ({"max_gen_toks": 4, "temperature": 1.0, "top_p": 2.0}, "gen_kwargs: top_p"),
    ],
)
def test_bad_generation_arguments(ours, settings, sentence):
    with pytest.raises(UserError, match=sentence):
        ours.generate_until(requests("generate_until", [("O", settings)]), disable_tqdm=True)
