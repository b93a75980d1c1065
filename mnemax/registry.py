"""kind -> configuration class for every choice, filled by scanning folders: there is no list to edit.

A choice (projection, memory, retention, feedforward, source, objective, measure) is a folder of files. A file defines a subclass of
the folder's base with `kind: Literal["name"] = "name"`; that alone registers it. Folders outside the package join through the
environment variable MNEMAX_PLUGINS (separated like PATH): each of their files may define kinds of any choice.
"""

import functools
import importlib
import importlib.util
import operator
import os
import pkgutil
import sys
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import Field

from mnemax.configs.base import Config
from mnemax.errors import UserError

# The choices: the module that holds the base class, and its name there. The kinds are the files beside it.
BASES = {
    "projection": ("mnemax.layers.projections", "ProjectionConfig"),
    "memory": ("mnemax.layers.memories", "MemoryConfig"),
    "retention": ("mnemax.layers.retention", "RetentionConfig"),
    "feedforward": ("mnemax.layers.feedforward", "FeedForwardConfig"),
    "source": ("mnemax.data.sources", "SourceConfig"),
    "objective": ("mnemax.training.objectives", "ObjectiveConfig"),
    "measure": ("mnemax.evaluation.measures", "MeasureConfig"),
}


def _import_package_folder(package: str) -> None:
    folder = importlib.import_module(package)
    for entry in pkgutil.iter_modules(folder.__path__):
        importlib.import_module(f"{package}.{entry.name}")


@functools.cache
def _import_plugins() -> None:
    for folder in filter(None, os.environ.get("MNEMAX_PLUGINS", "").split(os.pathsep)):
        if not Path(folder).is_dir():
            raise UserError(f"MNEMAX_PLUGINS names {folder}, which is not a folder.")
        for path in sorted(Path(folder).glob("*.py")):
            name = f"mnemax_plugins.{path.stem}"
            spec = importlib.util.spec_from_file_location(name, path)
            assert spec is not None and spec.loader is not None
            sys.modules[name] = module = importlib.util.module_from_spec(spec)
            try:
                spec.loader.exec_module(module)
            except Exception as error:  # whatever a user's file does
                what = " ".join(str(error).split())
                raise UserError(f"{path}, of MNEMAX_PLUGINS, cannot be imported: {type(error).__name__}: {what}.") from error


def _subclasses(base: type) -> list[type]:
    return [c for child in base.__subclasses__() for c in (child, *_subclasses(child))]


def kind_of(cls: type[Config]) -> str | None:
    """The value of the class's own `kind: Literal[...]`, None for a base shared by several kinds."""
    field = cls.model_fields.get("kind")
    if field is None or get_origin(field.annotation) is not Literal:
        return None
    return get_args(field.annotation)[0]


@functools.cache
def kinds(choice: str) -> dict[str, type[Config]]:
    """Every registered kind of a choice, in alphabetical order.

    Raises:
        UserError: two classes claim one kind.
    """
    package, base_name = BASES[choice]
    base = getattr(importlib.import_module(package), base_name)
    _import_package_folder(package)
    _import_plugins()
    found: dict[str, type[Config]] = {}
    for cls in _subclasses(base):
        kind = kind_of(cls)
        if kind is None:
            continue
        if kind in found:
            files = (sys.modules[c.__module__].__file__ for c in (found[kind], cls))
            raise UserError(f"The {choice} kind '{kind}' is defined twice, in {' and in '.join(map(str, files))}; rename one.")
        found[kind] = cls
    return dict(sorted(found.items()))


def union(choice: str) -> Any:
    """The tagged union of a choice's configurations, as a type for pydantic."""
    classes = tuple(kinds(choice).values())
    if not classes:
        return type(None)
    either: Any = functools.reduce(operator.or_, classes)
    return either if len(classes) == 1 else Annotated[either, Field(discriminator="kind")]


def default(choice: str, kind: str) -> Any:
    """The configuration of a kind with its default fields."""
    return kinds(choice)[kind]()
