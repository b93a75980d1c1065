"""What the end of a run shows: samples and curves."""

import shlex
from pathlib import Path

from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from mnemax.configs.schema import RunConfig
from mnemax.files import writing
from mnemax.launch.sampling import prompt_ids, visible
from mnemax.models.folder import open_model
from mnemax.models.generate import Generator, Sampling
from mnemax.training.metrics import Record, plot_curves
from mnemax.training.progress import quality


def finish(run: RunConfig, folder: Path, validated: Record | None) -> None:
    """Prints samples (kept in samples.txt), draws curves.png, and says where everything is.

    Raises:
        UserError: the folder cannot be written.
    """
    console = Console(highlight=False)
    texts = samples(run, folder)
    for text in texts:
        console.print(Panel(Text(visible(text.strip("\n"))), title="sample", title_align="left"))
    with writing(folder):
        (folder / "samples.txt").write_text("\n\n----\n\n".join(texts), "utf-8")
        curves = plot_curves(folder, run.name)
    reached = "" if validated is None else f"validation {quality(validated)}; "
    console.print(f"{reached}curves in {curves}, checkpoints and metrics beside it", soft_wrap=True)
    console.print(f'to continue a prompt: mnemax sample {shlex.quote(str(folder))} --prompt "..."', soft_wrap=True)


def samples(run: RunConfig, folder: Path) -> list[str]:
    """Texts drawn from the run's newest checkpoint at temperature 0.8."""
    if not run.evaluation.samples:
        return []
    model = open_model(folder)
    tokenizer = model.tokenizer
    assert tokenizer is not None  # training saved it
    ids = prompt_ids(tokenizer, run.evaluation.sample_prompt)
    stop = [] if tokenizer.eos is None else [tokenizer.eos]
    count = min(run.evaluation.sample_tokens, model.config.max_length - len(ids))
    generator = Generator(model.config, model.params, Sampling(temperature=0.8))
    rows = generator.generate([ids] * run.evaluation.samples, count, stop=stop, seed=run.seed)
    return [run.evaluation.sample_prompt + tokenizer.decode([t for t in row if t not in stop]) for row in rows]
