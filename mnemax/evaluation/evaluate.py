"""Measures a model in a folder and keeps the results beside it, in evaluation.json."""

import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from mnemax import registry
from mnemax.configs import load
from mnemax.configs.schema import RunConfig
from mnemax.data.tasks import TaskConfig
from mnemax.errors import UserError
from mnemax.evaluation import accounting
from mnemax.evaluation.measures import MeasureConfig, Result, Subject
from mnemax.files import write_whole, writing
from mnemax.models.folder import Model, open_model, read_config
from mnemax.models.params import bind, different, weights

FILE = "evaluation.json"
OF_MEMORY = re.compile(r"(model\.)?(layer|stages(\[\d+\]|\.\d+)\.layers(\[\d+\]|\.\d+))\.attention\.(memory|retention)(\.|$)")


def evaluate(
    folder: Path,
    names: Sequence[str],
    batch: int,
    step: int | None = None,
    *,
    overrides: Sequence[str] = (),
    fresh: bool = False,
) -> Result:
    """Measures a run or an import by shipped measures' names or files; default: what it was trained on.

    The results are written after each measure; one that is there already, of the same checkpoint and settings, is not done again
    unless `fresh`.

    Args:
        overrides: fields of memories and retentions, under which the same weights are measured; the results have their own file.

    Raises:
        UserError: a name is unknown, the model does not fit a measure, an override changes weights, or nothing can be written.
    """
    overrides = list(overrides)
    check_overrides(folder, overrides)
    file = folder / results_file(overrides)
    run = load.load_run(str(folder)) if load.is_run(folder) else None
    measures = {name: read_measure(name) for name in names} or default_measures(run)
    model = open_model(folder, overrides, step)
    known = _known(file, model.step) if not fresh else {}
    results = {"step": model.step, "overrides": overrides, "model": costs(model, run), "tasks": known}
    subject = Subject(model, None if run is None else run.data, batch)
    console = Console(highlight=False)
    for name, measure in measures.items():
        settings = measure.model_dump(mode="json")
        if results["tasks"].get(name, {}).get("settings") == settings:
            console.print(f"{name}: {said(results['tasks'][name])} (from {file})", soft_wrap=True)
            continue
        result = _measured(name, measure, subject, console)
        results["tasks"][name] = result | {"settings": settings}
        with writing(file):
            write_whole(file, json.dumps(results, indent=1) + "\n")
        console.print(f"{name}: {said(result)}", soft_wrap=True)
    return results


def check_overrides(folder: Path, overrides: list[str]) -> None:
    """Refuses what is no field of a memory or a retention, and what the run's weights do not fit.

    Raises:
        UserError: naming the field or the weight.
    """
    for override in overrides:
        field, _ = load.parse_override(override)
        if not OF_MEMORY.match(field):
            raise UserError(
                f"override {field}: a run is measured under other fields of its memories and retentions alone "
                "(layer.attention.memory, layer.attention.retention)."
            )
    if not overrides:
        return
    trained, measured = weights(read_config(folder)), weights(read_config(folder, overrides))
    if difference := different(trained, measured, str(folder), fresh=False):
        raise UserError(f"The overrides change the model's weights: {difference}.")


def results_file(overrides: list[str]) -> str:
    """The file's name: the overrides without the places that go without saying, and a digest where a name cannot hold them."""
    if not overrides:
        return FILE
    said = ",".join(override.removeprefix("model.").removeprefix("layer.attention.") for override in overrides)
    plain = re.sub(r"[^\w.=,\[\]+-]+", "_", said)[:120]
    digest = "" if plain == said else f"-{hashlib.sha256(said.encode()).hexdigest()[:8]}"
    return f"{Path(FILE).stem}-{plain}{digest}.json"


def _measured(name: str, measure: MeasureConfig, subject: Subject, console: Console) -> Result:
    columns = (TextColumn(name), BarColumn(bar_width=24), TextColumn("{task.completed}/{task.total}"), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(name, total=None)
        return measure(subject, lambda done, total: bar.update(task, completed=done, total=total))


def said(result: Result) -> str:
    """A result's main numbers in a line."""
    wanted = {
        "accuracy": "accuracy {:.3f}",
        "chance": "chance {:.3f}",
        "bits_per_byte": "{:.3f} bits/byte",
        "loss": "loss {:.3f}",
        "prefill_tokens_per_second": "prefill {:.0f} tokens/s",
        "decode_tokens_per_second": "decode {:.0f} tokens/s",
        "train_tokens_per_second": "training {:.0f} tokens/s",
    }
    return " · ".join(text.format(result[name]) for name, text in wanted.items() if result.get(name) is not None)


def read_measure(name: str) -> MeasureConfig:
    """A shipped measure by its name, a YAML file, or a kind with its defaults.

    Raises:
        UserError: there is none of this name (known ones are listed), or a field is wrong.
    """
    shipped = load.shipped("measures")
    kinds = registry.kinds("measure")
    path = load.SHIPPED / "measures" / f"{name}.yaml" if name in shipped else Path(name)
    if not path.is_file() and name not in kinds:
        raise UserError(f"There is no task '{name}': it is neither a file nor one of {', '.join(sorted({*shipped, *kinds}))}.")
    tree: Any = load.read_mapping(path) if path.is_file() else {"kind": name}

    class Holder(load.Config):
        measure: registry.union("measure")  # type: ignore[valid-type]

    return load.validate(Holder, {"measure": tree}, str(path) if path.is_file() else name).measure


def default_measures(run: RunConfig | None) -> dict[str, MeasureConfig]:
    """Recall where the run reads tasks, language where it reads text."""
    sources = () if run is None else run.data.validation or run.data.sources
    tasks = [isinstance(source, TaskConfig) for source in sources]
    names = [name for name, wanted in (("recall", any(tasks)), ("language", not all(tasks) or not tasks)) if wanted]
    return {name: read_measure(name) for name in names}


def _known(path: Path, step: int) -> dict[str, Result]:
    """Results of an earlier evaluation of the same checkpoint."""
    try:
        saved = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return saved["tasks"] if saved.get("step") == step else {}


def costs(model: Model, run: RunConfig | None) -> Result:
    """What the model costs; bytes are those of the arrays that one row's decode state is made of, and by formula."""
    config = model.config
    context = config.max_length if run is None else run.data.sequence_length
    state = jax.eval_shape(lambda: bind(config, model.params).init_state(1, context))
    live = accounting.live_bytes(state)
    layers = accounting.layer_costs(config, context)
    trained = 0 if run is None else model.step * run.data.batch_size * run.data.sequence_length
    return {
        "parameters": accounting.parameters(config),
        "context": context,
        "state_bytes": live,
        "state_bytes_by_formula": accounting.state_bytes(config, 1, context),
        "state_bytes_by_layer": [layer.state_bytes for layer in layers],
        "bytes_a_token": live / context,
        "bytes_read_a_step": sum(layer.read_bytes for layer in layers),
        "flops_a_token": accounting.forward_flops(config, context),
        "train_flops": accounting.train_flops(config, context) * trained,
    }
