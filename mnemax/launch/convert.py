"""Run folders to and from Hugging Face folders."""

from pathlib import Path

from mnemax.evaluation.accounting import human, parameters
from mnemax.models import hf
from mnemax.models.folder import open_model, save_model


def export_run(folder: Path, out: Path, step: int | None, dtype: str) -> None:
    """Writes a run's newest checkpoint (or that of `step`) as a Hugging Face folder, with its tokenizer.

    Raises:
        UserError: no Hugging Face class holds this architecture, or `out` is taken.
    """
    model = open_model(folder, step=step)
    hf.save(out, model.config, model.params, carried=folder / "tokenizer", dtype=dtype)
    print(f"{out}: step {model.step} of {folder}, {human(parameters(model.config))} parameters in {dtype}.")


def import_folder(source: Path, out: Path) -> None:
    """Reads a Hugging Face folder into a run's folder, tokenizer and generation settings included.

    Raises:
        UserError: the folder is not one that a known family reads, or `out` is taken.
    """
    config, params = hf.load(source)
    save_model(out, config, params)
    hf.carry(source, out / "tokenizer")
    print(f"{out}: {human(parameters(config))} parameters; try `mnemax sample {out}`.")
