"""What there is: tables of every registered kind and of every shipped model, as Markdown for the console and the docs."""

import re
import sys
from collections.abc import Iterator

from mnemax import registry
from mnemax.configs.base import Config
from mnemax.configs.load import SHIPPED, load_model, shipped
from mnemax.configs.reference import fields, first_line, kind_of, sections, table

ARXIV = re.compile(r"arXiv (\d{4}\.\d{5})")


def overview() -> str:
    """All the tables, as Markdown."""
    blocks = [f"## {choice}\n\n{choice_words(choice)}\n\n{kinds_table(choice)}" for choice in registry.BASES]
    return "\n".join([*blocks, f"## shipped models\n\n{models_table()}"])


def kinds_table(choice: str) -> str:
    """kind, what it is, and its fields with their defaults; a sentence where a choice has no kind."""
    rows = [(f"`{kind}`", summary(cls), _fields(cls)) for kind, cls in registry.kinds(choice).items()]
    return table(("kind", "what it is", "fields"), rows) if rows else "No kind is registered yet.\n"


def kinds_page() -> Iterator[str]:
    """Markdown blocks: each choice's table, then the fields of each kind."""
    for choice in registry.BASES:
        yield f"## {choice}\n\n{choice_words(choice)}\n"
        yield kinds_table(choice)
        for kind, cls in registry.kinds(choice).items():
            if fields(cls):
                yield from sections(cls, f"{choice}.{kind}", level=3)


def choice_words(choice: str) -> str:
    """What a choice is, from the file that holds its contract."""
    return first_line(sys.modules[registry.BASES[choice][0]]).partition(". ")[0].removesuffix(".") + "."


def models_table() -> str:
    """Every shipped model: parameters, decode state at its longest context, and the class in transformers that holds it."""
    from mnemax.evaluation.accounting import human, parameters, state_bytes

    rows = []
    for name in shipped("models"):
        model = load_model(name)
        state = state_bytes(model, 1, model.max_length)
        cells = (human(parameters(model)), human(state, "B"), human(state / model.max_length, "B"), _transformers_class(model))
        rows.append((f"`{name}`", _links(_comment(name)), *cells))
    return table(("model", "what it is", "parameters", "decode state", "a token", "in transformers"), rows)


def summary(cls: type[Config]) -> str:
    """The first line of the kind's file (where it has several kinds, of the class), and the papers that are named there."""
    module = sys.modules[cls.__module__]
    own = [c for c in vars(module).values() if isinstance(c, type) and c.__module__ == module.__name__ and kind_of(c)]
    described = module if len(own) == 1 and first_line(module) else cls
    line = first_line(described)
    rest = [number for number in ARXIV.findall(described.__doc__ or "") if number not in line]
    return _links(line + (f" (arXiv {', arXiv '.join(rest)})" if rest else ""))


def _fields(cls: type[Config]) -> str:
    return ", ".join(f"`{f.name}`" + ("" if f.default == "required" else f" = {f.default}") for f in fields(cls))


def _comment(model: str) -> str:
    """The first comment of a shipped model's file."""
    return (SHIPPED / "models" / f"{model}.yaml").read_text().partition("\n")[0].removeprefix("# ")


def _transformers_class(model) -> str:
    from mnemax.errors import UserError
    from mnemax.models.hf import holder

    try:
        return f"`{holder(model)[0].architecture}`"
    except UserError:
        return "none"


def _links(text: str) -> str:
    return ARXIV.sub(r"[arXiv \1](https://arxiv.org/abs/\1)", text)
