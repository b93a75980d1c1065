"""From YAML and dotted overrides to a validated configuration; every mistake becomes one sentence."""

import difflib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel, ValidationError

from mnemax import registry
from mnemax.configs.base import Config
from mnemax.configs.merge import merge
from mnemax.configs.schema import ModelConfig, RunConfig
from mnemax.errors import UserError

SHIPPED = Path(__file__).parent
DEFAULT = "default"


def shipped(folder: str) -> list[str]:
    """Names of the configurations shipped in `experiments`, `models` or `ablations`."""
    return sorted(path.stem for path in (SHIPPED / folder).glob("*.yaml"))


def load_run(source: str, overrides: Sequence[str] = ()) -> RunConfig:
    """A run from a shipped experiment's name or a file, with `dotted.field=value` overrides.

    Raises:
        UserError: the file, an override or a field is wrong; the sentence names it.
    """
    tree = _override(_read(source, "experiments"), overrides)
    tree.setdefault("name", Path(source).stem)
    return validate(RunConfig, tree, source)


def load_model(source: str, overrides: Sequence[str] = ()) -> ModelConfig:
    """A model from a shipped model's or experiment's name, a run's folder, or a file of either."""
    if (config := Path(source) / "config.yaml").is_file():
        source = str(config)
    folder = "models" if source in shipped("models") else "experiments"
    tree = _override(_read(source, folder), overrides)
    return validate(RunConfig, {"name": source, **tree}, source).model if "model" in tree else validate(ModelConfig, tree, source)


def validate[C: Config](kind: type[C], tree: Any, source: str) -> C:
    """The tree as a configuration node, or a sentence that names file, field and what is allowed."""
    try:
        return kind.model_validate(tree)
    except ValidationError as error:
        raise UserError(f"{source}: {_sentence(kind, error)}") from error


def save(config: Config, path: Path) -> None:
    """Writes the resolved configuration as YAML."""
    path.write_text(yaml.safe_dump(config.model_dump(mode="json", exclude_none=False), sort_keys=False))


def _read(source: str, folder: str, seen: tuple[Path, ...] = ()) -> dict[str, Any]:
    """The YAML tree of a name or file, with interpolations resolved and every `base:` laid under its mapping."""
    path = _find(source, folder)
    if path in seen:
        raise UserError(f"{path}: 'base' leads back to itself by way of {', '.join(p.name for p in seen)}.")
    try:
        tree = OmegaConf.to_container(OmegaConf.load(path), resolve=True)
    except (yaml.YAMLError, OmegaConfBaseException, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(tree, dict):
        raise UserError(f"{path} holds {type(tree).__name__}, not a mapping of fields.")
    return _expand(tree, path, folder, seen)


def _expand(node: Any, path: Path, folder: str, seen: tuple[Path, ...]) -> Any:
    if not isinstance(node, dict):
        return node
    node = {key: _expand(value, path, "models" if key == "model" else folder, seen) for key, value in node.items()}
    if isinstance(node.get("model"), str):
        node["model"] = {"base": node["model"]}
        node["model"] = _expand(node["model"], path, "models", seen)
    if "base" not in node:
        return node
    base = node.pop("base")
    if not isinstance(base, str):
        raise UserError(f"{path}: 'base' must be the name of a configuration or a file, got {base!r}.")
    beside = path.parent / base
    return merge(_read(str(beside) if beside.is_file() else base, folder, (*seen, path)), node)


def _find(source: str, folder: str) -> Path:
    if Path(source).is_file():
        return Path(source).resolve()
    if (path := SHIPPED / folder / f"{source}.yaml").is_file():
        return path
    names = shipped(folder)
    near = difflib.get_close_matches(source, names, n=1)
    hint = f"did you mean '{near[0]}'? " if near else ""
    raise UserError(f"'{source}' is neither a file nor a shipped configuration; {hint}shipped {folder}: {', '.join(names)}.")


def _override(tree: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    config = OmegaConf.create(tree)
    pairs = []
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals or not key:
            raise UserError(f"'{override}' is not an override: write dotted.field=value.")
        try:
            pairs.append((key, yaml.safe_load(text)))
        except yaml.YAMLError as error:
            raise UserError(f"override {key}: '{text}' is not a YAML value.") from error
    # A kind comes first: it replaces its node, and the other overrides then fill it.
    for key, value in sorted(pairs, key=lambda pair: not pair[0].endswith(".kind")):
        parent, _, last = key.rpartition(".")
        try:
            if last == "kind" and OmegaConf.select(config, key) != value:
                OmegaConf.update(config, parent, {"kind": value}, merge=False, force_add=True)
            else:
                OmegaConf.update(config, key, _number(value), merge=True, force_add=True)
        except (OmegaConfBaseException, IndexError, ValueError, TypeError) as error:
            raise UserError(f"override {key}: there is no such place in the configuration.") from error
    return OmegaConf.to_container(config, resolve=True)  # type: ignore[return-value]


def _number(value: Any) -> Any:
    """YAML 1.1 reads 1e-3 as text; people write it as a number."""
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return value


def _sentence(kind: type[Config], error: ValidationError) -> str:
    errors = error.errors()
    first, more = errors[0], len(errors) - 1
    loc, names, owner = first["loc"], [], kind
    classes: list[type[Config]] = [kind]
    for part in loc:
        if isinstance(part, int):
            names.append(f"[{part}]")
        elif tagged := [c for c in classes if getattr(c.model_fields.get("kind"), "default", None) == part and len(classes) > 1]:
            classes, owner = tagged, tagged[0]
        else:
            names.append(f".{part}")
            fields = [c.model_fields[part] for c in classes if part in c.model_fields]
            owner = classes[0] if classes else owner
            classes = _classes(fields[0].annotation) if fields else []
    field = "".join(names).lstrip(".") or "the configuration"
    last = str(loc[-1]) if loc else ""
    also = f" ({more} more like it)" if more else ""
    return f"{field}: {_reason(first, last, owner)}{also}."


def _reason(error: Any, last: str, owner: type[Config]) -> str:
    given = error.get("input")
    match error["type"]:
        case "extra_forbidden":
            allowed = [name for name in owner.model_fields if name != "kind"]
            near = difflib.get_close_matches(last, allowed, n=1)
            hint = f"did you mean '{near[0]}'? " if near else ""
            return f"no such field; {hint}allowed: {', '.join(allowed)}"
        case "missing":
            return "this field is required"
        case "union_tag_invalid":
            tag = error["ctx"]["tag"]
            allowed = error["ctx"]["expected_tags"].replace("'", "").split(", ")
            near = difflib.get_close_matches(tag, allowed, n=1)
            hint = f"did you mean '{near[0]}'? " if near else ""
            return f"no kind '{tag}'; {hint}allowed: {', '.join(allowed)}"
        case "union_tag_not_found":
            return f"needs a 'kind', got {given!r}"
        case "value_error":
            return str(error["ctx"]["error"])
        case _:
            message = error["msg"][0].lower() + error["msg"][1:]
            return f"{message}, got {given!r}" if not isinstance(given, dict | BaseModel) else message


def _classes(annotation: Any) -> list[type[Config]]:
    """The configuration classes inside an annotation."""
    if isinstance(annotation, type) and issubclass(annotation, Config):
        return [annotation]
    return [c for inner in get_args(annotation) for c in _classes(inner)]


def plugin_folders() -> list[str]:
    """Folders whose kinds are registered beside the package's own."""
    return [folder for folder in os.environ.get("MNEMAX_PLUGINS", "").split(os.pathsep) if folder]


def all_kinds() -> dict[str, list[str]]:
    """Every registered kind by choice."""
    return {choice: list(registry.kinds(choice)) for choice in registry.BASES}
