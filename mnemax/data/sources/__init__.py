"""Sources of documents: one kind a file of this folder, registered by being there.

A source of text implements `texts`. A source of ready-made examples (token ids with their loss weights) implements `open`.
"""

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Self

from mnemax.configs.base import Config, PositiveFloat
from mnemax.errors import UserError

if TYPE_CHECKING:
    from mnemax.data.documents import Documents
    from mnemax.data.tokenizers import Tokenizer


def reason(error: Exception) -> str:
    """The first line of a library's error, for the end of a sentence."""
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")


class BadItems:
    """What happens to malformed items: the first one ends the run, or all are counted and skipped."""

    def __init__(self, skip: bool) -> None:
        self.skip = skip
        self.count = 0
        self.first = ""

    def __call__(self, message: str) -> None:
        """Reports one item.

        Raises:
            UserError: `message`, unless bad items are skipped.
        """
        if not self.skip:
            raise UserError(f"{message.rstrip('.')}; --skip-bad (data.skip_bad=true) counts such items and goes on.")
        self.count += 1
        self.first = self.first or message

    def summarize(self) -> None:
        """Logs how many items were skipped, if any were."""
        if self.count:
            logging.getLogger(__name__).warning("Skipped %d bad items, the first: %s", self.count, self.first)


class SourceConfig(Config):
    """Where documents come from. The base of every kind."""

    weight: PositiveFloat = 1.0
    """The share of rows in a mixture, relative to the other sources."""

    def texts(self, bad: BadItems) -> Iterator[str]:
        """Every document in a fixed order; malformed ones go to `bad`."""
        raise NotImplementedError(f"{type(self).__name__} gives no text")

    def open(self, tokenizer: "Tokenizer", bad: BadItems) -> "Documents":
        """Random access to the documents as tokens. Text is tokenised once and kept in memory."""
        from mnemax.data.documents import tokenize

        return tokenize(self.texts(bad), tokenizer)

    def held_out(self) -> Self | None:
        """The source of this one's own held-out split, None where it has none."""
        return None

    def __str__(self) -> str:
        return str(getattr(self, "path", getattr(self, "kind", type(self).__name__)))
