"""Measures against plain computations on the logits, and what `mnemax eval` keeps."""

import itertools
import json

import jax
import numpy as np
import pytest

from mnemax.configs.load import load_model
from mnemax.configs.schema import RunConfig
from mnemax.data.config import DataConfig
from mnemax.data.sources.mqar import MqarTask
from mnemax.data.sources.needle import NeedleTask
from mnemax.data.tokenizers import load_tokenizer
from mnemax.errors import UserError
from mnemax.evaluation import accounting
from mnemax.evaluation.evaluate import costs, evaluate, read_measure
from mnemax.evaluation.measures import Subject
from mnemax.evaluation.measures.language import LanguageConfig
from mnemax.evaluation.measures.recall import RecallConfig
from mnemax.evaluation.measures.speed import SpeedConfig
from mnemax.models.folder import Model, save_model
from mnemax.models.params import bind, init_params

TEXT = "to be or not to be, that is the question; to be is to do, and to do is to be. " * 3
MQAR = MqarTask(vocab_size=256, length=32, pairs=4)


@pytest.fixture(scope="module")
def model() -> Model:
    config = load_model("llama")
    return Model(config, init_params(config, jax.random.key(0)), load_tokenizer(DataConfig().tokenizer), 0)


@pytest.fixture
def subject(model, tmp_path):
    (tmp_path / "text.txt").write_text(TEXT)
    data = DataConfig(validation=[{"kind": "text", "path": str(tmp_path / "text.txt")}], sequence_length=48)
    return Subject(model, data, batch=3)


def ignore(done: int, total: int) -> None:
    assert 0 <= done <= total


def log_probabilities(model: Model, tokens) -> np.ndarray:
    logits, _ = jax.jit(lambda params, tokens: bind(model.config, params)(tokens))(model.params, np.asarray(tokens)[None])
    return np.asarray(jax.nn.log_softmax(logits[0]), np.float64)


def test_recall_counts_answers_alone(subject):
    result = RecallConfig(tasks=[MQAR], examples=7)(subject, ignore)
    nll, right, distances = [], [], []
    for i in range(7):
        example = MQAR.model_copy(update={"split": "test"}).number(i)
        said = log_probabilities(subject.model, example.inputs)
        for at in np.flatnonzero(example.asked):
            nll.append(-said[at, example.targets[at]])
            right.append(said[at].argmax() == example.targets[at])
            distances.append(example.distance[at])
    np.testing.assert_allclose([result["loss"], result["accuracy"]], [np.mean(nll), np.mean(right)], rtol=1e-4)
    assert result["answers"] == 7 * 4 == sum(part["answers"] for part in result["by_distance"])
    for part in result["by_distance"]:
        inside = [part["from"] <= d <= part["to"] for d in distances]
        assert sum(inside) == part["answers"]
        np.testing.assert_allclose(part["accuracy"], np.mean(np.array(right)[inside]))


def test_recall_of_several_tasks_is_told_apart(subject):
    tasks = [MQAR, NeedleTask(length=64, value_symbols=90)]
    result = RecallConfig(tasks=tasks, examples=4)(subject, ignore)
    assert [part["task"]["kind"] for part in result["parts"]] == ["mqar", "needle"]
    assert result["answers"] == sum(part["answers"] for part in result["parts"])


def test_the_tasks_of_the_run_are_the_default(subject):
    data = DataConfig(tokenizer={"kind": "symbols", "vocab_size": 256}, sources=[MQAR.model_dump()])
    own = RecallConfig(examples=3)(Subject(subject.model, data, 3), ignore)
    assert own == RecallConfig(tasks=[MQAR], examples=3)(subject, ignore)
    with pytest.raises(UserError, match="'recall' has no tasks"):
        RecallConfig()(subject, ignore)


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (MqarTask(vocab_size=512, length=32), "has 512 symbols, more than model.vocab_size"),
        (MqarTask(vocab_size=64, length=512), "has examples of 512 tokens, more than model.max_length"),
    ],
)
def test_a_task_that_the_model_cannot_hold(subject, task, message):
    with pytest.raises(UserError, match=message):
        RecallConfig(tasks=[task])(subject, ignore)


@pytest.mark.parametrize("stride", [None, 16, 7])
def test_language_counts_every_token_once(subject, stride):
    """Each target with the context that the windows give it, against one forward pass a window."""
    result = LanguageConfig(stride=stride)(subject, ignore)
    tokens = next(subject.model.tokenizer.documents([TEXT])).astype(np.int64)
    step, context, nll, seen, position = stride or 48, 48, [], [], []
    begin, done = 0, 1
    while done < len(tokens):
        end = min(begin + context + 1, len(tokens))
        window = tokens[begin:end]
        said = log_probabilities(subject.model, window[:-1])
        for target in range(done, end):
            i = target - begin - 1
            nll.append(-said[i, tokens[target]])
            position.append(i)
            pairs = list(itertools.pairwise(window[: i + 1]))
            seen.append((window[i], window[i + 1]) in pairs)
        begin, done = begin + step, end
    assert result["tokens"] == len(tokens) - 1 == len(nll)
    np.testing.assert_allclose(result["loss"], np.mean(nll), rtol=1e-4)
    np.testing.assert_allclose(result["bits_per_byte"], np.sum(nll) / np.log(2) / len(TEXT), rtol=1e-4)
    seen, nll, position = map(np.array, (seen, nll, position))
    assert result["repeated_bigrams"]["tokens"] == seen.sum() > 0
    np.testing.assert_allclose(result["repeated_bigrams"]["loss"], nll[seen].mean(), rtol=1e-4)
    np.testing.assert_allclose(result["other"]["loss"], nll[~seen].mean(), rtol=1e-4)
    for part in result["by_position"]:
        inside = (part["from"] <= position) & (position <= part["to"])
        assert part["tokens"] == inside.sum()
        np.testing.assert_allclose(part["loss"], nll[inside].mean(), rtol=1e-4)


def test_language_may_be_a_part_of_the_text(subject):
    result = LanguageConfig(tokens=100)(subject, ignore)
    assert 0 < result["tokens"] <= 100
    with pytest.raises(UserError, match=r"'language' has context 999, more than model.max_length"):
        LanguageConfig(context=999)(subject, ignore)


def test_speed_tells_what_it_holds(subject):
    result = SpeedConfig(prompt=20, new=4, repeats=1, train_length=16, train_batch=2)(subject, ignore)
    assert result["state_bytes"] == accounting.state_bytes(subject.model.config, 1, 32 + 4)
    assert all(result[f"{what}_tokens_per_second"] > 0 for what in ("prefill", "decode", "train"))
    assert result["peak_bytes"] > 0


def test_costs_are_those_of_the_arrays(model):
    run = RunConfig(name="x", steps=1, model=model.config, data=DataConfig(sequence_length=48))
    told = costs(model, run)
    assert told["state_bytes"] == told["state_bytes_by_formula"] == sum(told["state_bytes_by_layer"]) + 4
    assert told["context"] == 48


def test_results_are_kept_and_not_measured_twice(model, tmp_path, capsys):
    folder = tmp_path / "model"
    save_model(folder, model.config, model.params)
    (tmp_path / "small.yaml").write_text(json.dumps({"kind": "recall", "tasks": [MQAR.model_dump()], "examples": 4}))
    names = [str(tmp_path / "small.yaml")]
    first = evaluate(folder, names, batch=4)
    assert json.loads((folder / "evaluation.json").read_text()) == first
    again = evaluate(folder, names, batch=4)
    assert again == first
    assert capsys.readouterr().out.count("evaluation.json)") == 1
    (tmp_path / "small.yaml").write_text(json.dumps({"kind": "recall", "tasks": [MQAR.model_dump()], "examples": 5}))
    assert evaluate(folder, names, batch=4)["tasks"][names[0]]["answers"] == 20
    (folder / "evaluation.json").write_text("{ cut off")
    assert evaluate(folder, names, batch=4)["tasks"][names[0]]["answers"] == 20


def test_an_unknown_task_is_told_the_known_ones():
    with pytest.raises(UserError, match=r"no task 'mqra': it is neither a file nor one of .*language.*recall"):
        read_measure("mqra")


@pytest.mark.parametrize(
    ("text", "message"), {"kind: [recall": "is not valid YAML", "- recall": "holds list, not a mapping"}.items()
)
def test_a_file_that_is_no_measure(tmp_path, text, message):
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(UserError, match=message) as error:
        read_measure(str(tmp_path / "mine.yaml"))
    assert "\n" not in str(error.value)
