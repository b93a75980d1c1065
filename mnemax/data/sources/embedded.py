"""The corpus shipped with the package: the works of Shakespeare, one document a work."""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal, Self

from mnemax.data.sources import BadItems, SourceConfig
from mnemax.data.sources.text import find_files, read_text

FOLDER = Path(__file__).parent.parent / "embedded"


class EmbeddedSource(SourceConfig):
    """Real text without a download; see `mnemax/data/embedded/README.md`."""

    kind: Literal["embedded"] = "embedded"
    split: Literal["train", "validation"] = "train"
    """Whole works are held out for validation."""

    def texts(self, bad: BadItems) -> Iterator[str]:
        yield from map(read_text, find_files(str(FOLDER / self.split)))

    def held_out(self) -> Self | None:
        return self.model_copy(update={"split": "validation"})
