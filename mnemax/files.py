"""Writing files: what the file system refuses becomes a sentence."""

import contextlib
import uuid
from collections.abc import Generator
from pathlib import Path

from mnemax.errors import UserError


def refuse_taken(folder: Path) -> None:
    """
    Raises:
        UserError: there is something under this name already, an empty folder excepted.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} exists and is not an empty folder; name a new one.")


def write_whole(path: Path, text: str) -> None:
    """Writes a file that others may read at any time: they find the old text or the new one, whatever happens meanwhile."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")  # processes of several hosts may share a folder
    temporary.write_text(text)
    temporary.replace(path)


@contextlib.contextmanager
def writing(place: Path | str) -> Generator[None]:
    """
    Raises:
        UserError: the system refuses to write what the block writes, the disk is full, say.
    """
    try:
        yield
    except OSError as error:
        raise UserError(f"{place} cannot be written: {error.strerror or error}.") from error
