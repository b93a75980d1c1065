"""What keys, values and names are drawn from. Every draw of these goes on where the last one stopped: more of them begin alike."""

import functools
import random
import re
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path

from mnemax.data.sources import BadItems
from mnemax.data.sources.embedded import EmbeddedSource

ADJECTIVES, NOUNS = ((Path(__file__).parent / name).read_text("utf-8").split() for name in ("adjectives.txt", "nouns.txt"))
PAIRS = len(ADJECTIVES) * len(NOUNS)


def distinct(make: Callable[[], str], count: int, without: Iterable[str] = ()) -> list[str]:
    """`count` different results of `make`, none of them in `without`."""
    found = dict.fromkeys(without)
    given = len(found)
    while len(found) < given + count:
        found.setdefault(make())
    return list(found)[given:]


def pair(rng: random.Random) -> str:
    """Two words, as `amber-anchor`."""
    return f"{rng.choice(ADJECTIVES)}-{rng.choice(NOUNS)}"


@functools.cache
def english() -> tuple[str, ...]:
    """Words of 4 to 9 letters that stand in the embedded corpus in lower case."""
    found = set[str]()
    for text in EmbeddedSource().texts(BadItems(skip=False)):
        found.update(re.findall(r"\b[a-z]{4,9}\b", text))
    return tuple(sorted(found))


def number(rng: random.Random, digits: int) -> str:
    return str(rng.randrange(10 ** (digits - 1), 10**digits))


def random_uuid(rng: random.Random) -> str:
    return str(uuid.UUID(int=rng.getrandbits(128), version=4))


def letters(rng: random.Random, alphabet: str, count: int) -> str:
    """A word without a meaning."""
    return "".join(rng.choices(alphabet, k=count))
