"""Hugging Face checkpoints in and out. One file a family; which ones there are is what the folder holds."""

import contextlib
import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import ValidationError

from mnemax.configs.schema import ModelConfig
from mnemax.errors import UserError
from mnemax.models.hf.family import Family, HFConfig, Unfit, families, family_of, holder
from mnemax.models.hf.stages import stages_from_layers
from mnemax.models.params import Params

if TYPE_CHECKING:
    from mnemax.data.tokenizers import Tokenizer

__all__ = [
    "Unfit",
    "carried_files",
    "families",
    "generation_config",
    "holder",
    "load",
    "save",
    "stages_from_layers",
]

# What goes along unchanged: the tokenizer in its several forms, generation settings, licence.
CARRIED = (
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template*",
    "generation_config.json",
    "LICEN[CS]E*",
)
TOKEN_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")


def load(folder: str | Path) -> tuple[ModelConfig, Params]:
    """The model in a Hugging Face folder: its configuration, and its parameters in float32.

    Weights are read from safetensors one tensor at a time, so that no more than one parameter is in memory twice.

    Raises:
        UserError: it is no such folder, its architecture is not known or asks for what our model has not, or its tensors are not
            those that its config.json describes.
    """
    from mnemax.models.hf.tensors import read_params

    folder = Path(folder)
    family, config = _read_config(folder)
    return config, read_params(folder, config, family)


def save(
    folder: str | Path,
    config: ModelConfig,
    params: Params,
    *,
    tokenizer: "Tokenizer | None" = None,
    carry: str | Path | None = None,
    dtype: Literal["float32", "bfloat16"] = "float32",
    max_shard_bytes: int = 5 * 10**9,
) -> None:
    """A Hugging Face folder that transformers' AutoModelForCausalLM loads; it appears whole or not at all.

    Args:
        tokenizer: written beside the weights, and its special tokens into the configuration.
        carry: a folder whose tokenizer and generation files (`carried_files`) are copied, over the tokenizer's own.
        dtype: of the weights.

    Raises:
        UserError: no family holds the model exactly, the folder is there already, or it cannot be written.
    """
    from mnemax.models.hf.tensors import DTYPES, layout, write_params

    family, hf = holder(config)
    generation = {} if tokenizer is None else {"bos_token_id": tokenizer.start, "eos_token_id": tokenizer.eos}
    if carry is not None:
        generation |= generation_config(carry)
    hf |= {key: generation.get(key) for key in TOKEN_IDS} | {"dtype": dtype}
    with _whole_folder(Path(folder)) as scratch:
        if tokenizer is not None:
            tokenizer.save(scratch)
        for file in [] if carry is None else carried_files(carry):
            shutil.copy(file, scratch)
        _write_json(scratch / "generation_config.json", generation)
        _write_json(scratch / "config.json", hf)
        write_params(scratch, params, layout(config, family), DTYPES[dtype], max_shard_bytes)


def carried_files(folder: str | Path) -> list[Path]:
    """The files of a Hugging Face folder that import and export carry along unchanged: tokenizer, generation settings, licence."""
    return sorted(path for pattern in CARRIED for path in Path(folder).glob(pattern) if path.is_file())


def generation_config(folder: str | Path) -> dict[str, Any]:
    """A folder's generation settings; special tokens that its generation_config.json leaves out come from its config.json.

    Raises:
        UserError: one of the two is no JSON object.
    """
    folder = Path(folder)
    config, own = (
        _read_json(path) if path.is_file() else {} for path in (folder / "config.json", folder / "generation_config.json")
    )
    return {key: config[key] for key in TOKEN_IDS if config.get(key) is not None} | own


def _read_config(folder: Path) -> tuple[Family, ModelConfig]:
    path = folder / "config.json"
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder; a Hugging Face model is one, with config.json and safetensors files.")
    if not path.is_file():
        raise UserError(f"{folder} has no config.json, so it is not a Hugging Face model.")
    hf: HFConfig = _read_json(path)
    try:
        family = family_of(hf)
        return family, family.read_config(hf)
    except Unfit as reason:
        raise UserError(f"{path}: {reason}.") from None
    except ValidationError as error:
        first = error.errors()[0]
        raise UserError(f"{path} makes model.{'.'.join(map(str, first['loc']))} {first['input']!r}: {first['msg']}.") from error
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        TypeError,
        ValueError,
    ) as error:
        raise UserError(f"{path} has a value of the wrong type or size: {error}.") from error


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is no JSON: {error}.") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} holds {type(content).__name__}, not a JSON object.")
    return content


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", "utf-8")


@contextlib.contextmanager
def _whole_folder(folder: Path) -> Iterator[Path]:
    """A temporary folder that takes this name once it is complete."""
    from safetensors import SafetensorError

    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} is there already; name a folder that is new or empty.")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as scratch:
            whole = Path(scratch) / folder.name
            whole.mkdir()
            yield whole
            whole.replace(folder)
    except (OSError, SafetensorError) as error:
        raise UserError(f"{folder} cannot be written: {error}.") from error
