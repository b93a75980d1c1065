"""Small corpora on disk."""

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def documents() -> list[str]:
    """Twenty documents of 1 to 120 characters, some of several bytes a character."""
    rng = random.Random(0)
    return ["".join(rng.choices("abcde é漢😀\n", k=n)) for n in [1, 2, 120, *(rng.randint(1, 90) for _ in range(17))]]


@pytest.fixture
def jsonl(tmp_path: Path) -> Callable[..., str]:
    """Writes texts as a JSONL file and gives its path."""

    def write(texts: list[str], name: str = "corpus.jsonl") -> str:
        path = tmp_path / name
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        return str(path)

    return write
