"""Pages are current and lead somewhere."""

import re
from pathlib import Path

import pytest

from mnemax import registry
from scripts import generate_docs

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("mnemax/**/*.md")])
FENCED = re.compile(r"^( *)```.*?^\1```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^()\s]+)\)")


@pytest.mark.parametrize("page", generate_docs.pages(), ids=lambda path: path.name)
def test_generated_parts_are_current(page):
    text = page.read_text()
    assert generate_docs.renewed(text) == text, "run: uv run python scripts/generate_docs.py"


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_resolve(page):
    for link in LINK.findall(FENCED.sub("", page.read_text())):
        if link.startswith(("http:", "https:")):
            continue
        path, _, fragment = link.partition("#")
        target = page if not path else page.parent / path
        assert target.exists(), f"{link}: there is no {target}"
        if fragment:
            assert fragment in fragments(target.read_text()), f"{link}: {target.name} has no such heading"


def fragments(text: str) -> set[str]:
    """What GitHub makes of a page's headings: lower case, punctuation dropped, spaces as hyphens."""
    headings = re.findall(r"^#+ (.*)$", FENCED.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("kind", [kind for choice in ("projection", "memory", "retention") for kind in registry.kinds(choice)])
def test_every_kind_of_attention_has_a_page(kind):
    assert (ROOT / f"docs/architectures/{kind}.md").is_file()
