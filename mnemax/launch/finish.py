"""What the end of a run shows: samples and curves."""

from pathlib import Path

from rich.console import Console
from rich.panel import Panel

from mnemax.configs.schema import RunConfig
from mnemax.launch.sampling import prompt_ids
from mnemax.models.folder import open_model
from mnemax.models.generate import Generator, Sampling
from mnemax.training.metrics import plot_curves


def finish(run: RunConfig, folder: Path, bits_per_byte: float | None) -> None:
    """Prints samples (kept in samples.txt), draws curves.png, and says where everything is."""
    console = Console(highlight=False)
    texts = samples(run, folder)
    (folder / "samples.txt").write_text("\n\n----\n\n".join(texts))
    for text in texts:
        console.print(Panel(text.strip("\n"), title="sample", title_align="left"), markup=False)
    curves = plot_curves(folder, run.name)
    quality = "" if bits_per_byte is None else f"validation {bits_per_byte:.3f} bits/byte; "
    console.print(f"{quality}curves in {curves}, checkpoints and metrics beside it; `mnemax sample {folder}` continues any prompt.")


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
