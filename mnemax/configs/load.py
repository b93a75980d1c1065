"""From YAML and dotted overrides to a validated configuration; every mistake becomes one sentence."""

import difflib
import operator
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel, ValidationError

from mnemax.configs.base import Config
from mnemax.configs.merge import merge
from mnemax.configs.schema import ModelConfig, RunConfig
from mnemax.errors import UserError
from mnemax.files import write_whole

SHIPPED = Path(__file__).parent
DEFAULT = "default"

# What a YAML value may compute from another, e.g. `hidden_lr: ${div:256,${model.width}}`.
for _name, _function in {"mul": operator.mul, "div": operator.truediv, "floordiv": operator.floordiv}.items():
    OmegaConf.register_resolver(_name, _function, replace=True)


def shipped(folder: str) -> list[str]:
    """Names of the configurations shipped in `experiments`, `models` or `ablations`."""
    return sorted(path.stem for path in (SHIPPED / folder).glob("*.yaml"))


def load_run(source: str, overrides: Sequence[str] = ()) -> RunConfig:
    """A run from a shipped experiment's name, a file or a run's folder, with `dotted.field=value` overrides.

    Raises:
        UserError: the file, an override or a field is wrong; the sentence names it.
    """
    if is_run(source):
        source = f"{source}/config.yaml"
    tree = _override(_read(source, "experiments"), overrides)
    tree.setdefault("name", Path(source).stem)
    return validate(RunConfig, tree, source)


def is_run(source: str | Path) -> bool:
    """Whether it is the folder of a run."""
    return (Path(source) / "config.yaml").is_file()


def load_model(source: str, overrides: Sequence[str] = ()) -> ModelConfig:
    """A model from a shipped model's or experiment's name, the folder of a run or of an import, or a file of either."""
    if is_run(source):
        source = f"{source}/config.yaml"
    elif (Path(source) / "model.yaml").is_file():
        source = f"{source}/model.yaml"
    tree = _read(source, "models" if source in shipped("models") else "experiments")
    if "model" in tree:
        return validate(RunConfig, {"name": Path(source).stem, **_override(tree, overrides)}, source).model
    return validate(ModelConfig, _override(tree, [override.removeprefix("model.") for override in overrides]), source)


def validate[C: Config](kind: type[C], tree: Any, source: str) -> C:
    """The tree as a configuration node, or a sentence that names file, field and what is allowed."""
    try:
        return kind.model_validate(tree)
    except ValidationError as error:
        raise UserError(f"{source}: {_sentence(kind, error)}") from error


def save(config: Config, path: Path) -> None:
    """Writes the resolved configuration as YAML."""
    write_whole(path, yaml.safe_dump(config.model_dump(mode="json", exclude_none=False), sort_keys=False))


def _read(source: str, folder: str, seen: tuple[Path, ...] = ()) -> dict[str, Any]:
    """The YAML tree of a name or file, every `base:` laid under its mapping; interpolations wait for the overrides."""
    path = _find(source, folder)
    if path in seen:
        raise UserError(f"{path}: 'base' leads back to itself by way of {', '.join(p.name for p in seen)}.")
    return _expand(read_mapping(path), path, folder, seen)


def read_mapping(path: Path) -> dict[str, Any]:
    """The mapping that a YAML file holds, interpolations left as they stand.

    Raises:
        UserError: it is not YAML, or holds something else.
    """
    try:
        tree = OmegaConf.to_container(OmegaConf.load(path))
    except (yaml.YAMLError, OmegaConfBaseException, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(tree, dict):
        raise UserError(f"{path} holds {type(tree).__name__}, not a mapping of fields.")
    return {str(field): value for field, value in tree.items()}


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
    for place in (folder, "models", "experiments"):  # a user's own model file may lie on a shipped one of either sort
        if (path := SHIPPED / place / f"{source}.yaml").is_file():
            return path
    names = shipped(folder)
    near = difflib.get_close_matches(source, names, n=1)
    hint = f"did you mean '{near[0]}'? " if near else ""
    raise UserError(f"'{source}' is neither a file nor a shipped configuration; {hint}shipped {folder}: {', '.join(names)}.")


def _override(tree: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    config = OmegaConf.create(tree)
    pairs = [parse_override(override) for override in overrides]
    # What replaces a node comes first, a named model and then kinds; the other overrides then fill it.
    for key, value in sorted(pairs, key=lambda pair: (pair[0] != "model", not pair[0].endswith(".kind"))):
        parent, _, last = key.rpartition(".")
        if key == "model" and isinstance(value, str):
            config["model"] = _read(value, "models")
            continue
        if parent and last == "kind":
            key, value = parent, {"kind": value}
        for place in _places(config, key):
            try:
                existing = OmegaConf.select(config, place)
                merged = merge(OmegaConf.to_container(existing) if OmegaConf.is_config(existing) else existing, value)
                OmegaConf.update(config, place, merged, merge=False, force_add=True)
            except (OmegaConfBaseException, IndexError, ValueError, TypeError) as error:
                raise UserError(f"override {key}: there is no such place in the configuration.") from error
    try:
        return _lists(OmegaConf.to_container(config, resolve=True))
    except (OmegaConfBaseException, ArithmeticError, TypeError) as error:
        raise UserError(f"A value that refers to another cannot be resolved: {' '.join(str(error).split())}.") from error


def _places(config: Any, key: str) -> list[str]:
    """Where a field is set. Of `layer`, in a model that was saved and has its defaults spread already: in every layer."""
    root = "model." if key.startswith("model.") else ""
    model, field = config.get("model") if root else config, key.removeprefix(f"{root}layer.")
    if field == key or not OmegaConf.is_dict(model) or "layer" not in model or model["layer"] is not None:
        return [key]
    counts = [len(stage.get("layers", [{}])) for stage in model["stages"]]
    return [f"{root}stages[{s}].layers[{i}].{field}" for s, count in enumerate(counts) for i in range(count)]


def parse_override(override: str) -> tuple[str, Any]:
    """The field and the value of `dotted.field=value`.

    Raises:
        UserError: it is not of this form.
    """
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise UserError(f"'{override}' is not an override: write dotted.field=value.")
    try:
        return key, OmegaConf.to_container(OmegaConf.from_dotlist([f"value={text}"]))["value"]  # type: ignore[index]
    except (yaml.YAMLError, OmegaConfBaseException) as error:
        raise UserError(f"override {key}: '{text}' is not a YAML value.") from error


def _lists(node: Any) -> Any:
    """Lists where overrides such as `sources[0].kind=text` made a mapping of numbers, nothing being there before."""
    if isinstance(node, list):
        return [_lists(item) for item in node]
    if not isinstance(node, dict):
        return node
    numbered = bool(node) and list(node) == [str(i) for i in range(len(node))]
    return [_lists(item) for item in node.values()] if numbered else {key: _lists(item) for key, item in node.items()}


def _sentence(kind: type[Config], error: ValidationError) -> str:
    # A misspelt field is the reason why another is missing, so it is told first.
    first, *others = sorted(error.errors(), key=lambda each: each["type"] != "extra_forbidden")
    # A list whose item is wrong is also reported as too short.
    others = [other for other in others if other["loc"] != first["loc"][: len(other["loc"])]]
    field, reason = _of_one(kind, first)
    also = f" (also wrong: {', '.join(_of_one(kind, other)[0] for other in others[:4])})" if others else ""
    return f"{field}: {reason}{also}." if field else f"{reason}{also}."


def _of_one(kind: type[Config], error: Any) -> tuple[str, str]:
    """Which field an error is about ('' for the whole), and what is wrong with it."""
    loc, names, owner = error["loc"], [], kind
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
    return "".join(names).lstrip("."), _reason(error, str(loc[-1]) if loc else "", owner)


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
        case "model_type" | "model_attributes_type" | "dict_type":
            return f"should be a mapping of fields, got {given!r}"
        case "tuple_type":
            return f"should be a list, got {given!r}"
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
