"""The configuration as documentation: every field's type, default and meaning, from the classes that read it."""

import ast
import inspect
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le
from pydantic.fields import FieldInfo

from mnemax import registry
from mnemax.configs.base import Config


@dataclass(frozen=True)
class Field:
    """One field of a configuration class, as Markdown."""

    name: str
    type: str
    default: str
    meaning: str


def fields(cls: type[Config]) -> list[Field]:
    """Every field but the `kind` that names the class, in the order of the class."""
    meanings = _meanings(cls)
    return [
        Field(name, _type([info.annotation, *info.metadata]), _default(info), meanings.get(name, ""))
        for name, info in cls.model_fields.items()
        if name != "kind" or kind_of(cls) is None
    ]


def sections(cls: type[Config], path: str = "", level: int = 2) -> Iterator[str]:
    """A Markdown section for the class and one for each class below it, but for the choices, whose kinds have a page of their own.

    Args:
        path: where the class stands in a configuration, dotted; empty: it is all of it.
    """
    yield f"{'#' * level} {f'`{path}`' if path else 'The run'}\n\n{first_line(cls)}\n"
    if rows := fields(cls):
        cells = [(f"`{row.name}`", row.type, row.default, row.meaning) for row in rows]
        yield table(("field", "type", "default", "meaning"), cells)
    for name, info in cls.model_fields.items():
        classes = configs_in(info.annotation)
        if choice_of(classes):
            continue
        listed = "[]" if get_origin(info.annotation) is tuple else ""
        for child in classes:
            kind = f" {kind_of(child)}" if kind_of(child) else ""
            yield from sections(child, f"{path}.{name}{listed}{kind}".removeprefix("."), level)


def table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """A Markdown table."""
    lines = [header, tuple("---" for _ in header), *(tuple(cell.replace("|", r"\|") for cell in row) for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def first_line(documented: Any) -> str:
    """The first line of a docstring."""
    return (inspect.getdoc(documented) or "").partition("\n")[0]


def configs_in(annotation: Any) -> list[type[Config]]:
    """The configuration classes that an annotation names."""
    if isinstance(annotation, type) and issubclass(annotation, Config):
        return [annotation]
    return [cls for inner in get_args(annotation) for cls in configs_in(inner)]


def choice_of(classes: list[type[Config]]) -> str | None:
    """The choice of the registry whose kinds these are."""
    return next((c for c in registry.BASES if classes and set(classes) <= set(registry.kinds(c).values())), None)


def kind_of(cls: type) -> str | None:
    """The kind that names the class; a `kind` of several values is a field like any other."""
    allowed = get_args(cls.model_fields["kind"].annotation) if issubclass(cls, Config) and "kind" in cls.model_fields else ()
    return allowed[0] if len(allowed) == 1 else None


def _meanings(cls: type[Config]) -> dict[str, str]:
    """The string below each field, of the class and of its bases."""
    found = {}
    for base in reversed(cls.__mro__):
        if not issubclass(base, Config) or base is Config:
            continue
        (body,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(body, ast.ClassDef)
        for field, below in pairwise(body.body):
            if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
                found[ast.unparse(field.target)] = " ".join(str(below.value.value).split())
    return found


def _type(parts: list[Any]) -> str:
    """An annotation and what limits it, in words."""
    annotation, *limits = parts
    origin, args = get_origin(annotation), get_args(annotation)
    if classes := configs_in(annotation):
        if choice := choice_of(classes):
            what = f"[{choice}](kinds.md#{choice})"
        else:
            what = "one of the kinds below" if len(classes) > 1 else "the fields below"
        what = f"list of {what}" if origin is tuple else what
        return f"{what}, or null" if NoneType in args else what
    if origin is Annotated:
        return _type([args[0], *args[1:], *limits])
    if origin in (Union, UnionType):
        return " or ".join(_type([arg]) for arg in args)
    if origin is Literal:
        return ", ".join(f"`{arg}`" for arg in args)
    if origin is tuple:
        return f"list of {_type([args[0]])}"
    name = {NoneType: "null", str: "text", int: "integer", float: "number", bool: "true, false", dict: "mapping"}
    return name[origin or annotation] + ",".join(_limits(limits))


def _limits(metadata: list[Any]) -> Iterator[str]:
    for limit in metadata:
        match limit:
            case FieldInfo():
                yield from _limits(limit.metadata)
            case Ge(ge=low):
                yield f" ≥ {low}"
            case Gt(gt=low):
                yield f" > {low}"
            case Le(le=high):
                yield f" ≤ {high}"


def _default(info: FieldInfo) -> str:
    if info.is_required():
        return "required"
    return _value(info.get_default(call_default_factory=True, validated_data={}))


def _value(value: Any) -> str:
    match value:
        case Config():
            return f"`{kind_of(type(value))}`" if kind_of(type(value)) else "its defaults"
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case str():
            return f"`{value}`" if value else "empty"
        case tuple():
            return ", ".join(map(_value, value)) or "none"
    return str(value)
