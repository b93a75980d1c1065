"""Questions about one of many paragraphs, in the shape of RULER's qa_1."""

import functools
import json
import random
import string
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, override

from mnemax.data.sources.text import read_text
from mnemax.errors import UserError
from mnemax.evaluation.ruler import DEPTHS, Sample, Task
from mnemax.evaluation.ruler.haystacks import plant
from mnemax.evaluation.ruler.words import distinct, letters, pair

TRADES = ["baker", "carpenter", "gardener", "glazier", "librarian", "miller", "painter", "potter", "tailor", "weaver"]
FIRST_NAMES = ["Ada", "Bruno", "Clara", "David", "Elena", "Felix", "Greta", "Hugo", "Iris", "Jonas", "Mara", "Paul", "Thea"]


class Paragraph(NamedTuple):
    """A paragraph, and questions on it with all their right answers."""

    text: str
    questions: tuple[tuple[str, tuple[str, ...]], ...]


@dataclass(frozen=True, kw_only=True)
class Questions(Task):
    """A fact that one of the paragraphs tells: of made-up people, or of a file in the layout of SQuAD."""

    new_tokens: int = 32
    any_answer: bool = True
    path: str | None = None

    @property
    @override
    def limit(self) -> int | None:
        return None if self.path is None else len(squad(self.path)) - 1

    @override
    def sample(self, rng: random.Random, size: int, length: int) -> Sample:
        depth = rng.choice(DEPTHS)
        asked, others = made_up(rng, size) if self.path is None else drawn(rng, squad(self.path), size)
        question, answers = rng.choice(asked.questions)
        context = plant([other.text for other in others], [asked.text], [depth], separator="\n\n")
        return Sample(
            f"Below are paragraphs, one of which answers the question that follows them.\n\n{context}",
            f"\n\nAnswer in a few words, as the paragraphs say. {question}",
            " Answer:",
            answers,
            depth,
        )


def made_up(rng: random.Random, size: int) -> tuple[Paragraph, list[Paragraph]]:
    """A person's life, and those of `size` others, no two of one name."""
    names = random.Random(rng.random())
    people = distinct(lambda: f"{names.choice(FIRST_NAMES)} {_surname(names)}", size + 1)
    details = random.Random(rng.random())
    asked, *others = [_life(details, person) for person in people]
    return asked, others


def drawn(rng: random.Random, paragraphs: tuple[Paragraph, ...], size: int) -> tuple[Paragraph, list[Paragraph]]:
    """A paragraph that can be asked about, and `size` others."""
    asked = rng.choice([paragraph for paragraph in paragraphs if paragraph.questions])
    others = [paragraph for paragraph in paragraphs if paragraph is not asked]
    rng.shuffle(others)
    return asked, others[:size]


@functools.cache
def squad(path: str) -> tuple[Paragraph, ...]:
    """The paragraphs of a JSON file in the layout of SQuAD (Rajpurkar et al. 2016, arXiv 1606.05250; version 2 too), each once.

    Raises:
        UserError: it cannot be read, or is of another layout, or asks nothing.
    """
    try:
        found: dict[str, Paragraph] = {}
        for article in json.loads(read_text(Path(path).expanduser()))["data"]:
            for paragraph in article["paragraphs"]:
                asked = ((qa["question"], tuple(dict.fromkeys(a["text"] for a in qa["answers"]))) for qa in paragraph["qas"])
                text = paragraph["context"]
                found[text] = Paragraph(text, tuple((question, answers) for question, answers in asked if answers))
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is not in SQuAD's layout (data[].paragraphs[] with context and qas[]): {error!r}.") from error
    if not any(paragraph.questions for paragraph in found.values()):
        raise UserError(f"{path} holds no question with an answer.")
    return tuple(found.values())


def _surname(rng: random.Random) -> str:
    return "".join(letters(rng, alphabet, 1) for alphabet in ("BDFGKLMNPRSTV", "aeiou", "lmnrst", "aeiou", "lmnrst"))


def _life(rng: random.Random, person: str) -> Paragraph:
    year, town, trade, ship = str(rng.randint(1700, 1950)), _surname(rng) + "burg", rng.choice(TRADES), pair(rng)
    return Paragraph(
        f"{person} was born in {year} and grew up in the town of {town}. Having worked as a {trade} for some years, "
        f"{person} bought a boat, gave it the name {string.capwords(ship, '-')}, and was seldom seen on land again.",
        (
            (f"In which year was {person} born?", (year,)),
            (f"In which town did {person} grow up?", (town,)),
            (f"What did {person} work as?", (trade,)),
            (f"What was the name of the boat of {person}?", (ship,)),
        ),
    )
