"""A model in a folder, as sampling and export read it: `model.yaml`, `checkpoints/`, and `tokenizer/` where it has one."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mnemax.configs import load
from mnemax.errors import UserError
from mnemax.files import refuse_taken, writing

if TYPE_CHECKING:
    from mnemax.configs.schema import ModelConfig
    from mnemax.data.tokenizers import Tokenizer
    from mnemax.models.params import Params


@dataclass(frozen=True)
class Model:
    """A model that was read from a folder; `tokenizer` is None where none was saved with it."""

    config: "ModelConfig"
    params: "Params"
    tokenizer: "Tokenizer | None"
    step: int


def open_model(folder: Path, overrides: list[str] | None = None, step: int | None = None) -> Model:
    """The model of a run or of an import, with the parameters of its newest readable checkpoint, or of `step`.

    Raises:
        UserError: the folder holds no model, or its checkpoint cannot be read.
    """
    from mnemax.data.config import HFTokenizer
    from mnemax.data.tokenizers import load_tokenizer
    from mnemax.training.checkpoint import load_params

    config = read_config(folder, overrides)
    params, step = load_params(folder, config, step)
    has_tokenizer = (folder / "tokenizer" / "tokenizer.json").is_file()
    tokenizer = load_tokenizer(HFTokenizer(path=str(folder / "tokenizer"))) if has_tokenizer else None
    return Model(config, params, tokenizer, step)


def read_config(folder: Path, overrides: list[str] | None = None) -> "ModelConfig":
    """The model of a run or of an import, without its parameters.

    Raises:
        UserError: the folder holds no model.
    """
    if not (folder / "model.yaml").is_file():
        raise UserError(f"{folder} is not a run's folder: it has no model.yaml (a run's folder is what `mnemax train` writes).")
    return load.load_model(str(folder / "model.yaml"), overrides or ())


def save_model(folder: Path, config: "ModelConfig", params: "Params", step: int = 0) -> None:
    """Writes a model that no run has made (an import) as one.

    Raises:
        UserError: the folder holds something already, or cannot be written.
    """
    from mnemax.training.checkpoint import save_params

    refuse_taken(folder)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        load.save(config, folder / "model.yaml")
    save_params(folder, params, step)
