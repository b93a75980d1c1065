"""Write the parts of README.md and docs/ that come from the code.

    uv run python scripts/generate_docs.py

Between `<!-- generated: NAME -->` and `<!-- end -->` stands what `BLOCKS[NAME]` gives, or the file NAME as a code block. The rest
of a page is written by hand.
"""

import os
import re
from pathlib import Path

from mnemax import registry
from mnemax.configs import load, reference
from mnemax.configs.schema import ModelConfig, RunConfig
from mnemax.evaluation.accounting import state_bytes
from mnemax.launch import kinds

ROOT = Path(__file__).parents[1]
MARKED = re.compile(r"(<!-- generated: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)
LANGUAGES = {".py": "python", ".yaml": "yaml"}
SAID = re.compile(r"^(Claim|Measured): (.*)\.$", re.MULTILINE)  # in the page of a kind
ZOO_CONTEXT = 4096
ATTENTION = ("projection", "memory", "retention", "feedforward")


def choices() -> str:
    """A row a choice, its kinds with their pages."""

    def linked(kind: str) -> str:
        page = f"docs/architectures/{kind}.md"
        return f"[`{kind}`]({page})" if (ROOT / page).is_file() else f"`{kind}`"

    rows = [(choice, ", ".join(map(linked, registry.kinds(choice)))) for choice in ATTENTION]
    return reference.table(("choice", "kinds"), rows)


def zoo() -> str:
    """A row a shipped model: what it keeps, at how many bytes, what is claimed of it and what was measured here."""
    header = ("model", "projection", "memory", "retention", "B a token and layer", "bounded", "claim", "measured here")
    return reference.table(header, [_zoo_row(name) for name in load.shipped("models")])


def _zoo_row(name: str) -> tuple[str, ...]:
    model = load.load_model(name, ["dtype=bfloat16"])
    used = {choice: _kinds_of(model, choice) for choice in ("projection", "memory", "retention")}
    cells = [", ".join(f"[{kind}](architectures/{kind}.md)" for kind in used[choice]) for choice in used]
    token = state_bytes(model, 1, ZOO_CONTEXT) / ZOO_CONTEXT / len(model.layers)
    bounded = state_bytes(model, 1, 65_536) == state_bytes(model, 1, 32_768)
    kind, words = _said([kind for kinds in used.values() for kind in kinds])
    claim = f"{kind}: {words['Claim']}" if "Claim" in words else ""
    return (f"`{name}`", *cells, f"{token:.3g}", "yes" if bounded else "no", claim, words.get("Measured", "not measured"))


def _said(kinds: list[str]) -> tuple[str, dict[str, str]]:
    """The kind that is special about a model, and what its page claims and measured.

    Any projection comes before grouped queries, any memory before full; but a model of windows and full memory forgets nothing.
    """
    common = {"gqa": 1, "full": 1} | ({"window": 2} if "full" in kinds else {})
    for kind in sorted(kinds, key=lambda kind: common.get(kind, 0)):
        if words := dict(SAID.findall((ROOT / f"docs/architectures/{kind}.md").read_text())):
            return kind, words
    return "", {}


def _kinds_of(model: ModelConfig, choice: str) -> list[str]:
    """The kinds of a choice, in the order of the layers; of a reader's memory there is none."""
    layers = [layer.attention for layer in model.layers]
    nodes = [getattr(layer, choice) for layer in layers if choice == "projection" or layer.read is None]
    return list(dict.fromkeys(registry.kind_of(type(node)) for node in nodes if node is not None))


BLOCKS = {
    "choices": choices,
    "zoo": zoo,
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
