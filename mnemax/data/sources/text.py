"""Plain text: one document a file."""

import glob
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from mnemax.data.sources import BadItems, SourceConfig
from mnemax.errors import UserError


class TextSource(SourceConfig):
    """UTF-8 files; each is one document."""

    kind: Literal["text"] = "text"
    path: str
    """A file, a glob (`books/**/*.txt`) or a folder (every file below it)."""

    def texts(self, bad: BadItems) -> Iterator[str]:
        for path in find_files(self.path):
            try:
                text = read_text(path)
            except UserError as error:
                bad(str(error))
            else:
                yield text


def read_text(path: Path) -> str:
    """The text of a file.

    Raises:
        UserError: it cannot be read, is empty, or is not UTF-8 text.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from error
    if not data:
        raise UserError(f"{path} is empty; a text file holds one document.")
    if b"\0" in data:
        raise UserError(f"{path} is a binary file (it has NUL bytes); a text file is UTF-8.")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text (byte {error.start}); convert it to UTF-8 first.") from error


def find_files(path: str) -> list[Path]:
    """The files that a file name, a glob or a folder means, in alphabetical order; hidden ones only if named.

    Raises:
        UserError: there are none.
    """
    root = Path(path).expanduser()
    if root.is_file():
        return [root]
    if root.is_dir():
        below = (file for file in root.rglob("*") if not any(part.startswith(".") for part in file.relative_to(root).parts))
        what = "holds no files"
    else:
        below = map(Path, glob.glob(str(root), recursive=True))
        what = "matches no file" if glob.has_magic(path) else "does not exist"
    files = sorted(file for file in below if file.is_file())
    if not files:
        raise UserError(f"{path} {what}; data.sources[].path is a file, a glob or a folder.")
    return files
