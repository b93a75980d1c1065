"""JSON Lines, plain or compressed: one document a line."""

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from mnemax.data.sources import BadItems, SourceConfig, reason
from mnemax.data.sources.text import find_files
from mnemax.errors import UserError


class JsonlSource(SourceConfig):
    """`.jsonl`, `.jsonl.gz` or `.jsonl.zst` files of objects with a text field; blank lines are ignored."""

    kind: Literal["jsonl"] = "jsonl"
    path: str
    """A file, a glob or a folder."""
    field: str = "text"

    def texts(self, bad: BadItems) -> Iterator[str]:
        for path in find_files(self.path):
            empty = True
            for number, line in enumerate(read_lines(path), 1):
                if not line.strip():
                    continue
                empty = False
                try:
                    text = self._text(line)
                except (ValueError, TypeError) as error:
                    bad(f"{path}:{number}: {error}.")
                else:
                    yield text
            if empty:
                bad(f"{path} is empty; it should hold one JSON object a line.")

    def _text(self, line: bytes) -> str:
        try:
            item = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"malformed JSON, {error.msg} at column {error.colno}") from error
        except UnicodeDecodeError as error:
            raise ValueError(f"not UTF-8 text (byte {error.start} of the line)") from error
        if not isinstance(item, dict):
            raise TypeError(f"a JSON {type(item).__name__}, where an object with the field '{self.field}' should be")
        if self.field not in item:
            raise ValueError(f"no field '{self.field}' (it has {', '.join(map(repr, item)) or 'none'}); set `field`")
        text = item[self.field]
        if not isinstance(text, str):
            raise TypeError(f"the field '{self.field}' is {json.dumps(text)[:40]}, not a string")
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise ValueError(f"the field '{self.field}' has a lone surrogate, which UTF-8 cannot hold") from error
        return text


def read_lines(path: Path) -> Iterator[bytes]:
    """The lines of a file, decompressed as its suffix says.

    Raises:
        UserError: it cannot be read, or its compressed stream is damaged or cut off.
    """
    import pyarrow

    try:
        with pyarrow.input_stream(path, compression="detect") as stream:
            yield from io.BufferedReader(stream, 1 << 20)
    except (OSError, pyarrow.ArrowException) as error:
        raise UserError(f"{path} cannot be read to its end, it is damaged or cut off: {reason(error)}.") from error
