"""RULER's tasks: a reader with regular expressions solves them, and samples are as long, as deep and as repeatable as said."""

import json
import re
from collections import Counter

import numpy as np
import pytest

from mnemax.data.config import BytesTokenizer, EmbeddedTokenizer, SymbolsTokenizer
from mnemax.data.tokenizers import load_tokenizer
from mnemax.errors import UserError
from mnemax.evaluation.evaluate import read_measure
from mnemax.evaluation.measures.ruler import RulerConfig, by_depth
from mnemax.evaluation.ruler import DEPTHS, Task
from mnemax.evaluation.ruler.fitting import allowance, draw, fit, spell
from mnemax.evaluation.ruler.haystacks import NOISE, plant
from mnemax.evaluation.ruler.tasks import TASKS, task
from mnemax.evaluation.ruler.words import ADJECTIVES, NOUNS
from tests.evaluation.subjects import subject

EACH = pytest.mark.parametrize("name", TASKS)
LENGTHS = {"cwe": 1536, "niah_multikey_3": 1536}  # others: 1024


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer(EmbeddedTokenizer(vocab_size=4096))


# What the answers are, found in the text as a reader would who knows nothing but the rules.


def solve_needles(context: str, question: str) -> list[str]:
    told = re.findall(r"special magic \w+ for (\S+) is: (\S+)\.", context)
    asked = re.search(r"give for (.*)\?$", question)
    assert asked is not None
    return [value for name in re.split(r", | and ", asked[1]) for key, value in told if key == name]


def solve_passkey(context: str, question: str) -> list[str]:
    first, second = re.findall(r"\b\d{5}\b", context)
    assert first == second
    return [first]


def solve_variables(context: str, question: str) -> list[str]:
    value_of: dict[str, str] = {}
    for name, value, copied in re.findall(r"VAR ([A-Z]{5}) = (?:(\d+)|VAR ([A-Z]{5}))\.", context):
        value_of[name] = value or value_of[copied]  # a copy before what it copies would be a KeyError
    (asked,) = re.findall(r"\d+", question)
    return [name for name, value in value_of.items() if value == asked]


def solve_common_words(context: str, question: str) -> list[str]:
    example, shown, _, listed = context.split("\n\n")[1:5]
    (said,) = re.findall(r"most often: (.*)$", shown)
    assert set(said.split(", ")) == set(commonest(example))  # the worked example is right
    return commonest(listed)


def commonest(listed: str) -> list[str]:
    numbers, words = zip(*(entry.split(". ") for entry in re.findall(r"\d+\. \w+", listed)), strict=True)
    assert [int(number) for number in numbers] == list(range(1, len(words) + 1))
    counts = Counter(words).most_common()
    assert counts[9][1] > max((count for _, count in counts[10:]), default=0)
    return [word for word, _ in counts[:10]]


def solve_frequent_words(context: str, question: str) -> list[str]:
    counts = Counter(re.findall(r"\b[a-z]{6}\b|\.\.\.", context.split("\n\n")[1])).most_common()
    assert counts[0][0] == "..."
    assert len({count for _, count in counts[:5]}) == 5
    return [word for word, _ in counts[1:4]]


def solve_questions(context: str, question: str) -> list[str]:
    found = re.search(r"year was|town did|What did|boat of", question)
    person = re.search(r"[A-Z][a-z]+ [A-Z][a-z]+(?=\?| grow| work| born)", question)
    assert found is not None and person is not None
    fact = {
        "year was": r"born in (\d+)",
        "town did": r"town of (\w+)",
        "What did": r"worked as a (\w+)",
        "boat of": r"the name (\S+),",
    }[found[0]]
    (paragraph,) = [paragraph for paragraph in context.split("\n\n") if paragraph.startswith(person[0] + " ")]
    return [answer.lower() for answer in re.findall(fact, paragraph)]


SOLVERS = {
    "passkey": solve_passkey,
    "vt": solve_variables,
    "cwe": solve_common_words,
    "fwe": solve_frequent_words,
    "qa": solve_questions,
}


@EACH
def test_a_reader_finds_the_answers(name, tokenizer):
    asked, length = TASKS[name], LENGTHS.get(name, 1024)
    solve = SOLVERS.get(name, solve_needles)
    for number in range(5):
        sample = fit(asked, name, tokenizer, number, length, 128).sample
        said = solve(sample.context, sample.question)
        assert Counter(said) == Counter(answer.lower() if name == "qa" else answer for answer in sample.answers)
        assert asked.score(f" {', '.join(said)}", sample.answers) == 1
        assert not any(answer in sample.question + sample.answer_prefix for answer in sample.answers)


@EACH
@pytest.mark.parametrize("kind", [EmbeddedTokenizer(vocab_size=1024), BytesTokenizer()], ids=["bpe", "bytes"])
def test_prompt_and_answer_are_as_long_as_fits(name, kind):
    tokenizer, asked = load_tokenizer(kind), TASKS[name]
    length = 2 * LENGTHS.get(name, 1024)
    allowed = allowance(asked, name, tokenizer, length, 2)
    assert allowed >= asked.new_tokens
    for number in range(2):
        fitted = fit(asked, name, tokenizer, number, length, allowed)
        assert fitted.prompt == spell(tokenizer, fitted.sample)
        answer = tokenizer.encode(" " + ", ".join(fitted.sample.answers))
        assert len(answer) <= allowed and len(fitted.prompt) + allowed <= length
        larger = draw(asked, number, fitted.size + 1, length)
        assert len(spell(tokenizer, larger)) + allowed > length
        assert larger.answers == fitted.sample.answers


@EACH
def test_a_sample_is_a_function_of_its_number(name):
    asked = TASKS[name]
    first = draw(asked, 3, 80, 1024)
    assert first == draw(asked, 3, 80, 1024)
    others = [draw(asked, 4, 80, 1024), draw(asked, 3, 80, 1024, seed=1)]
    assert all(other.answers != first.answers or other.context != first.context for other in others)


@pytest.mark.parametrize(
    "name", ["passkey", "niah_single_1", "niah_single_2", "niah_single_3", "niah_multikey_1", "niah_multikey_2", "qa"]
)
def test_what_is_asked_lies_where_it_is_said_to(name):
    seen = set()
    for number in range(50):
        sample = draw(TASKS[name], number, 100 if name == "qa" else 400, 8192)
        assert sample.depth in DEPTHS
        hay = sample.context.split("\n\n", 1)[1]
        asked = re.findall(r"\w+[ -]\w+(?=\?| grow| work| born)", sample.question) if name == "qa" else sample.answers
        at = hay.index(asked[0])
        assert abs(at / len(hay) - sample.depth) < 0.02
        seen.add(sample.depth)
    assert len(seen) > 20


def test_needles_spread_over_the_haystack():
    depths = []
    for number in range(100):
        sample = draw(TASKS["niah_multivalue"], number, 300, 8192)
        depths += [sample.context.index(value) / len(sample.context) for value in sample.answers]
    assert abs(np.mean(depths) - 0.5) < 0.05 and np.std(depths) > 0.25


def test_planting():
    assert plant(["aa", "bb", "cc"], ["X", "Y", "Z"], [0.0, 0.6, 1.0]) == "X aa bb Y cc Z"
    assert plant(["aa"], ["X", "Y"], [0.1, 0.1]) == "X Y aa"
    assert plant([], ["X", "Y"], [0.2, 0.9]) == "X Y"


def test_haystacks():
    noise = draw(TASKS["niah_single_1"], 0, 50, 1024).context
    assert all(noise.count(sentence) == 10 for sentence in NOISE)
    needles = draw(TASKS["niah_multikey_2"], 0, 50, 1024).context
    keys = re.findall(r"for (\S+) is:", needles)
    assert len(set(keys)) == len(keys) == 51


def test_a_file_that_is_not_there():
    for name in ("qa", "niah_single_2"):
        with pytest.raises(UserError, match=r"nowhere\.json (cannot be read|does not exist)"):
            draw(task(name, path="nowhere.json"), 0, 2, 512)


def test_text_from_a_file(tmp_path):
    path = tmp_path / "essay.txt"
    path.write_text("One thing. Another thing!\nA third\n")
    context = draw(task("niah_single_2", path=str(path)), 0, 6, 1024).context
    assert all(context.count(sentence) == 2 for sentence in ("One thing.", "Another thing!", "A third"))


def test_common_words_come_as_often_as_in_the_source():
    for length, times in ((1024, (6, 1)), (4096, (30, 3))):
        context = draw(TASKS["cwe"], 0, 40, length).context
        counts = Counter(re.findall(r"\d+\. (\w+)", context.split("\n\n")[-1]))
        assert Counter(counts.values()) == {times[0]: 10, times[1]: 40}


def test_frequent_words_follow_a_zeta_law():
    length, size = 4000, 2000
    context = draw(TASKS["fwe"], 0, size, length).context.split("\n\n")[1]
    counts = [count for _, count in Counter(context.split()).most_common()]
    assert sum(counts) == size
    for rank in range(2, 8):
        assert abs(counts[rank - 1] - size * rank**-2 / (np.pi**2 / 6)) < 0.02 * size / rank


def test_no_pair_of_words_is_part_of_another():
    assert not any(a != b and b.endswith(a) for a in ADJECTIVES for b in ADJECTIVES)
    assert not any(a != b and b.startswith(a) for a in NOUNS for b in NOUNS)


def test_scores():
    every, one = Task(new_tokens=1), Task(new_tokens=1, any_answer=True)
    assert every.score("It is AB, then cd.", ("ab", "CD", "ef", "gh")) == 0.5
    assert one.score("It is ab.", ("AB", "CD")) == 1 and one.score("no", ("AB", "CD")) == 0


def squad_file(tmp_path, paragraphs: int, name: str = "squad.json") -> str:
    """Two articles; every second paragraph is asked about, one question cannot be answered."""

    def paragraph(i: int) -> dict:
        asked = [
            {
                "question": f"What is item {i}?",
                "answers": [{"text": f"thing {i}x"}, {"text": f"a thing {i}x"}, {"text": f"thing {i}x"}],
            },
            {"question": f"Why {i}?", "answers": [], "is_impossible": True},
        ]
        return {"context": f"Item {i} is a thing {i}x, and nothing else.", "qas": asked if i % 2 else []}

    articles = [{"title": t, "paragraphs": [paragraph(i) for i in range(t, paragraphs, 2)]} for t in (0, 1)]
    path = tmp_path / name
    path.write_text(json.dumps({"version": "v2.0", "data": articles}))
    return str(path)


def test_questions_of_a_squad_file(tmp_path, tokenizer):
    asked = task("qa", path=squad_file(tmp_path, 200))
    for number in range(10):
        sample = fit(asked, "qa", tokenizer, number, 512, 32).sample
        (item,) = re.findall(r"What is item (\d+)\?", sample.question)
        assert sample.answers == (f"thing {item}x", f"a thing {item}x")
        paragraphs = sample.context.split("\n\n")[1:]
        assert len(set(paragraphs)) == len(paragraphs) and f"Item {item} is a thing {item}x, and nothing else." in paragraphs
    few = task("qa", path=squad_file(tmp_path, 6, "few.json"))
    with pytest.raises(UserError, match="The task qa has 5 pieces of haystack, too few to fill a length of 4096 tokens"):
        fit(few, "qa", tokenizer, 0, 4096, 32)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("[]", "is not in SQuAD's layout"),
        ("{", "is not in SQuAD's layout"),
        ('{"data": []}', "holds no question with an answer"),
    ],
)
def test_files_of_another_layout(content, sentence, tmp_path):
    (tmp_path / "bad.json").write_text(content)
    with pytest.raises(UserError, match=sentence):
        draw(task("qa", path=str(tmp_path / "bad.json")), 0, 2, 512)


def test_a_model_is_measured(tokenizer):
    done = []
    measure = RulerConfig(task="passkey", lengths=(192, 256), samples=6)
    result = measure(subject(tokenizer), lambda n, total: done.append((n, total)))
    assert done == [(n, 12) for n in range(1, 13)]
    assert result["samples"] == 12 and [part["length"] for part in result["by_length"]] == [192, 256]
    assert sum(part["samples"] for part in result["by_depth"]) == 12
    assert result["accuracy"] == np.mean([part["accuracy"] for part in result["by_length"]])
    assert json.loads(json.dumps(result)) == result


def test_depth_bins():
    bins = list(by_depth([1, 0, 1, 1, 0], [0.0, 0.1, 1.0, None, 0.5]))
    assert [(b["from"], b["to"], b["accuracy"], b["samples"]) for b in bins] == [(0, 0.2, 0.5, 2), (0.4, 0.6, 0, 1), (0.8, 1, 1, 1)]


@EACH
def test_every_task_is_shipped(name):
    measure = read_measure(name)
    assert isinstance(measure, RulerConfig) and measure.task == name


def refused(measure: RulerConfig, sentence: str, tokenizer, max_length: int = 512) -> None:
    with pytest.raises(UserError, match=sentence):
        measure(subject(tokenizer, max_length=max_length), lambda n, total: None)


def test_bad_input(tokenizer):
    refused(RulerConfig(lengths=(256, 1024)), r"lengths of 1024, more than model.max_length \(512\)", tokenizer)
    refused(RulerConfig(lengths=(256,)), "needs a tokenizer", None)
    symbols = load_tokenizer(SymbolsTokenizer(vocab_size=256))
    refused(RulerConfig(lengths=(256,)), "tokenizer, of 256 ids, cannot spell the task niah_single_1", symbols)
    refused(
        RulerConfig(lengths=(150,)), r"takes at least \d+ tokens and 128 for the answer, more than its length \(150\)", tokenizer
    )
    refused(RulerConfig(task="fwe", haystack="text", lengths=(512,)), "The task fwe has a haystack of its own", tokenizer)
    refused(RulerConfig(task="niah_multikey_2", haystack="text"), "haystack of its own", tokenizer, 4096)
    refused(RulerConfig(path="a.txt", lengths=(512,)), r"niah_single_1 reads no text, so it has no `path` \(a.txt\)", tokenizer)
