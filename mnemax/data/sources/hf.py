"""Hugging Face datasets (the extra `mnemax[hf]`): one document a row."""

from collections.abc import Iterator
from typing import Literal

from mnemax.data.sources import BadItems, SourceConfig, reason
from mnemax.errors import UserError


class HFSource(SourceConfig):
    """A data set of the hub, a local folder or script that `datasets.load_dataset` reads, as a stream."""

    kind: Literal["hf"] = "hf"
    path: str
    """The first argument of `datasets.load_dataset`."""
    name: str | None = None
    """Its configuration, where it has several."""
    split: str = "train"
    field: str = "text"

    def texts(self, bad: BadItems) -> Iterator[str]:
        try:
            import datasets  # pyrefly: ignore[missing-import] - an extra
        except ImportError as error:
            raise UserError("A source of kind hf needs the package `datasets`: install mnemax[hf].") from error
        try:
            rows = datasets.load_dataset(self.path, self.name, split=self.split, streaming=True)
            for number, row in enumerate(rows):  # some of what is wrong shows only as it is read
                text = row.get(self.field)
                if isinstance(text, str):
                    yield text
                else:
                    bad(f"{self.path}, row {number}: no text in the field '{self.field}' (it has {', '.join(row)}); set `field`.")
        except (OSError, ValueError) as error:
            raise UserError(f"The data set {self.path} ({self.name}, {self.split}) cannot be read: {reason(error)}.") from error
