"""Write the parts of README.md and docs/ that come from the code.

    uv run python scripts/generate_docs.py

Between `<!-- generated: NAME -->` and `<!-- end -->` stands what `BLOCKS[NAME]` gives, or the file NAME as a code block. The rest
of a page is written by hand.
"""

import os
import re
from pathlib import Path

from mnemax import registry
from mnemax.configs import reference
from mnemax.configs.schema import RunConfig
from mnemax.launch import kinds

ROOT = Path(__file__).parents[1]
MARKED = re.compile(r"(<!-- generated: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)
LANGUAGES = {".py": "python", ".yaml": "yaml"}
ATTENTION = ("projection", "memory", "retention", "feedforward")


def choices() -> str:
    """A row a choice, its kinds with their pages."""

    def linked(kind: str) -> str:
        page = f"docs/architectures/{kind}.md"
        return f"[`{kind}`]({page})" if (ROOT / page).is_file() else f"`{kind}`"

    rows = [(choice, ", ".join(map(linked, registry.kinds(choice)))) for choice in ATTENTION]
    return reference.table(("choice", "kinds"), rows)


BLOCKS = {
    "choices": choices,
    "kinds": lambda: "\n".join(kinds.kinds_page()),
    "models": kinds.models_table,
    "configuration": lambda: "\n".join(reference.sections(RunConfig)),
}


def pages() -> list[Path]:
    """The pages with something generated in them."""
    return [path for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))) if MARKED.search(path.read_text())]


def renewed(text: str) -> str:
    """A page with its generated parts as the code has them now."""
    return MARKED.sub(lambda match: f"{match[1]}\n{_block(match[2])}\n{match[3]}", text)


def _block(name: str) -> str:
    if name in BLOCKS:
        return BLOCKS[name]()
    return f"```{LANGUAGES[Path(name).suffix]}\n{(ROOT / name).read_text()}```\n"


def main() -> None:
    if os.environ.get("MNEMAX_PLUGINS"):
        raise SystemExit("Unset MNEMAX_PLUGINS first: the docs list the package's own kinds.")
    for path in pages():
        text = path.read_text()
        if text != (new := renewed(text)):
            path.write_text(new)
            print(f"{path.relative_to(ROOT)} written")


if __name__ == "__main__":
    main()
