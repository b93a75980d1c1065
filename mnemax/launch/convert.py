"""Run folders to and from Hugging Face folders, and to models of a smaller cache."""

import itertools
import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from mnemax.configs import load
from mnemax.errors import UserError
from mnemax.evaluation.accounting import human, parameters, state_bytes
from mnemax.evaluation.evaluate import default_measures
from mnemax.evaluation.measures import Subject
from mnemax.evaluation.measures.language import LanguageConfig
from mnemax.files import refuse_taken, writing
from mnemax.models import hf, uptrain
from mnemax.models.folder import Model, open_model, read_config, save_model

if TYPE_CHECKING:
    from mnemax.configs.schema import ModelConfig, RunConfig

LOSS_TOKENS = 16_384


def export_run(folder: Path, out: Path, step: int | None, dtype: Literal["float32", "bfloat16"]) -> None:
    """Writes a run's newest checkpoint (or that of `step`) as a Hugging Face folder, with its tokenizer.

    Raises:
        UserError: no Hugging Face class holds this architecture, or `out` is taken or cannot be written.
    """
    model = open_model(folder, step=step)
    hf.save(out, model.config, model.params, tokenizer=model.tokenizer, carry=folder / "tokenizer", dtype=dtype)
    print(f"{out}: step {model.step} of {folder}, {human(parameters(model.config))} parameters in {dtype}.")


def import_folder(source: Path, out: Path) -> None:
    """Reads a Hugging Face folder into a run's folder, tokenizer and generation settings included.

    Raises:
        UserError: the folder is not one that a known family reads, or `out` is taken or cannot be written.
    """
    refuse_taken(out)
    config, params = hf.load(source)
    save_model(out, config, params)
    with writing(out):
        (out / "tokenizer").mkdir()
        for file in hf.carried_files(source):
            shutil.copy(file, out / "tokenizer")
        (out / "tokenizer" / "generation_config.json").write_text(json.dumps(hf.generation_config(source), indent=2) + "\n")
    print(f"{out}: {human(parameters(config))} parameters; try `mnemax sample {out}`.")


def convert_run(folder: Path, to: str | None, overrides: Sequence[str], out: Path, step: int | None, calibrate: int) -> None:
    """Writes a run's newest checkpoint (or that of `step`) as a model of another configuration, and tells what that saves.

    Args:
        to: the new model's configuration, under `overrides`; None: the run's own.
        calibrate: tokens of the run's data to look at, where a rule wants to know what layers attend over; 0: none.

    Raises:
        UserError: the model cannot be carried over, there is no data to calibrate with, or `out` is taken or cannot be written.
    """
    refuse_taken(out)
    model, target = open_model(folder, step=step), _target(str(folder) if to is None else to, overrides)
    run = load.load_run(str(folder)) if load.is_run(folder) else None
    tokens = calibrate if uptrain.changes_kind(model.config, target) else 0
    try:
        inputs = uptrain.moments(model.config, model.params, _batches(model, run, tokens, folder))
        params = uptrain.convert(model.config, model.params, target, inputs)
    except uptrain.Unfit as reason:
        raise UserError(f"{folder} cannot become {to or 'this'}: {reason}.") from None
    save_model(out, target, params)
    if (folder / "tokenizer").is_dir():
        with writing(out):
            shutil.copytree(folder / "tokenizer", out / "tokenizer")
    _compare(model, Model(target, params, model.tokenizer, 0), run)
    print(f"to train on: mnemax train {folder if run else 'CONFIG'} model={out}/model.yaml start_from={out} name={out.name}")


def _target(to: str, overrides: Sequence[str]) -> "ModelConfig":
    is_folder = (Path(to) / "model.yaml").is_file()
    return read_config(Path(to), list(overrides)) if is_folder else load.load_model(to, overrides)


def _batches(model: Model, run: "RunConfig | None", tokens: int, folder: Path) -> Iterator[dict[str, np.ndarray]]:
    from mnemax.data.pipeline import train_iterator

    if tokens == 0:
        return iter(())
    if run is None or model.tokenizer is None:
        raise UserError(f"{folder} names no data to calibrate with, being no run's folder; --calibrate 0 does without.")
    batches = train_iterator(run.data, model.tokenizer, run.seed)
    return itertools.islice(batches, -(-tokens // (run.data.batch_size * run.data.sequence_length)))


def _compare(before: Model, after: Model, run: "RunConfig | None") -> None:
    """Prints what both cost, and their losses on held-out text where there is a run that names some."""
    both = before, after
    context = min(model.config.max_length for model in both)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("", "before", "after"):
        table.add_column(column, justify="right" if column else "left")
    table.add_row("parameters", *(human(parameters(model.config)) for model in both))
    table.add_row("decode bytes a token", *(f"{state_bytes(model.config, 1, context) / context:,.0f}" for model in both))
    if run is not None and isinstance(measure := default_measures(run).get("language"), LanguageConfig):
        few = measure.model_copy(update={"tokens": LOSS_TOKENS})
        losses = [few(Subject(model, run.data, 8), lambda *_: None)["loss"] for model in both]
        table.add_row("validation loss", *(f"{loss:.3f}" for loss in losses))
    Console(highlight=False).print(table)
