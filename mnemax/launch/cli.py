"""The command line. Imports happen inside the commands, so that `--help` answers at once."""

import logging
import os
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from mnemax.errors import UserError

HELP = """Pretrain, sample, measure and export language models whose attention remembers less.

CONFIG is a shipped configuration's name, a YAML file or a run's folder; any field is overridden as dotted.field=value, e.g.
optimizer.peak_lr=1e-3 model.layer.attention.memory.kind=window model.layer.attention.memory.size=64."""

app = typer.Typer(
    help=HELP,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
data_app = typer.Typer(help="Prepare data, and train tokenizers.", no_args_is_help=True)
app.add_typer(data_app, name="data")

ConfigName = Annotated[
    str,
    typer.Argument(metavar="CONFIG", help="A shipped configuration's name, a YAML file or a run's folder.", show_default=False),
]
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="FIELD=VALUE", help="Fields to set, dotted from the top.", show_default=False)
]
Sources = Annotated[list[str], typer.Argument(metavar="SRC", help="Files, folders or globs.", show_default=False)]
SkipBad = Annotated[bool, typer.Option("--skip-bad", help="Count malformed items and go on.")]
Dtype = Literal["float32", "bfloat16"]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder.", show_default=False)]


@app.command()
def train(
    config: ConfigName = "",
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="The run's folder; default: runs/NAME, numbered if taken.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the newest run of this name exactly where it stopped.")
    ] = False,
    skip_bad: SkipBad = False,
) -> None:
    """Train a model; without CONFIG, the embedded default: real text, on a CPU, in a few minutes."""
    from mnemax.configs.load import is_run, load_run
    from mnemax.launch.runs import choose_folder

    _cache_compilations()
    config, overrides = _split(config, overrides)
    run = load_run(config, [*overrides, *(["data.skip_bad=true"] if skip_bad else [])])
    if resume and out is None and is_run(config):
        out = Path(config)
    folder = choose_folder(run.name, out, resume)
    from mnemax.launch.finish import finish
    from mnemax.training.trainer import train

    outcome = train(run, folder, resume=resume)
    if outcome.signal is not None:
        print(f"Stopped at step {outcome.step} of {run.steps}; the same command with --resume continues it.")
        raise SystemExit(128 + outcome.signal)
    finish(run, folder, outcome.validation)


@app.command()
def sample(
    folder: RunFolder,
    prompt: Annotated[list[str] | None, typer.Option(help="May be given several times: they are decoded as one batch.")] = None,
    tokens: Annotated[int, typer.Option(help="New tokens at most.", min=1)] = 200,
    temperature: Annotated[float, typer.Option(help="0: greedy.", min=0.0)] = 0.8,
    top_k: Annotated[int | None, typer.Option(min=1)] = None,
    top_p: Annotated[float, typer.Option(min=0.0, max=1.0)] = 1.0,
    min_p: Annotated[float, typer.Option(min=0.0, max=1.0)] = 0.0,
    seed: int = 0,
    step: Annotated[int | None, typer.Option(help="A checkpoint's step; default: the newest.")] = None,
    dtype: Annotated[Dtype | None, typer.Option(help="Of activations and decode state; default: the model's.")] = None,
) -> None:
    """Continue a prompt, streaming; prints the speed of prefill and decoding and the bytes of decode state."""
    from mnemax.launch.sampling import stream_sample
    from mnemax.models.folder import open_model
    from mnemax.models.generate import Sampling

    _cache_compilations()
    model = open_model(folder, [] if dtype is None else [f"dtype={dtype}"], step)
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    stream_sample(model, folder, prompt or [""], tokens, sampling, seed)


@app.command()
def describe(
    config: ConfigName = "",
    overrides: Overrides = None,
    context: Annotated[int | None, typer.Option(help="Tokens of context; default: the model's longest.", min=1)] = None,
) -> None:
    """Show a configuration's parameters, FLOPs a token, layer plan and decode bytes."""
    from rich.console import Console

    from mnemax.configs.load import load_model
    from mnemax.evaluation.describe import describe

    config, overrides = _split(config, overrides)
    describe(load_model(config, overrides), config, Console(), context)


@app.command(name="eval")
def eval_(
    folder: RunFolder,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="FIELD=VALUE", help="Another memory or retention for the same weights.", show_default=False),
    ] = None,
    tasks: Annotated[
        list[str] | None,
        typer.Option(help="Shipped measures' names, kinds or files, separated by commas; default: what it was trained on."),
    ] = None,
    batch: Annotated[int, typer.Option(help="Rows computed at one time.", min=1)] = 16,
    step: Annotated[int | None, typer.Option(help="A checkpoint's step; default: the newest.")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Measure again what is measured already.")] = False,
) -> None:
    """Measure a run or an import; the results are kept beside it, in evaluation.json (under overrides: in a file of their own)."""
    from mnemax.evaluation.evaluate import evaluate

    _cache_compilations()
    measures = [name for names in tasks or [] for name in names.split(",")]
    evaluate(folder, measures, batch, step, overrides=overrides or [], fresh=fresh)


@app.command()
def sweep(
    name: Annotated[str, typer.Argument(metavar="SWEEP", help="A shipped ablation's name or a YAML file.", show_default=False)],
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="The sweep's folder; default: runs/sweeps/NAME.")] = None,
    jobs: Annotated[int, typer.Option(help="Cells at a time; on Linux they share the cores.", min=1)] = 1,
    only: Annotated[str | None, typer.Option(help="One member, as CELL/seed-N.")] = None,
    emit: Annotated[bool, typer.Option("--emit", help="Print a command for every unfinished member, and run none.")] = False,
) -> None:
    """Train and measure every cell of an ablation; finished cells are skipped, stopped ones resumed, failed ones tried again."""
    from rich.console import Console

    from mnemax.launch import sweep as launch

    launch.keep_accelerator_free()
    console = Console(highlight=False, stderr=emit)
    definition, folder, members = launch.prepare(name, overrides or [], out, console)
    if emit:
        print(launch.emit(definition, name, overrides or [], folder, members))
        return
    failed = launch.run_all(definition, launch.chosen(members, only), jobs, console)
    console.print(f"to see it: mnemax report {folder}", soft_wrap=True)
    if failed:
        raise UserError(f"{len(failed)} of {len(members)} failed ({', '.join(m.name for m in failed)}); their log.txt tells why.")


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(metavar="SWEEP", help="A sweep's folder.", show_default=False)],
    out: Annotated[Path | None, typer.Option(help="The report's folder; default: SWEEP/report.")] = None,
) -> None:
    """Draw a sweep's results as one HTML page, with its figures as PNG and its numbers as CSV."""
    from mnemax.evaluation.report import report

    print(report(folder, out))


@app.command()
def kinds() -> None:
    """Show every kind that a configuration may name, those of MNEMAX_PLUGINS included, and the shipped models."""
    from rich.console import Console
    from rich.markdown import Markdown

    from mnemax.launch.kinds import overview

    console = Console()
    if console.is_terminal:
        console.print(Markdown(overview()))
    else:
        print(overview())


@app.command()
def export(
    folder: RunFolder,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="A new Hugging Face folder.", show_default=False)],
    step: Annotated[int | None, typer.Option(help="A checkpoint's step; default: the newest.")] = None,
    dtype: Annotated[Dtype, typer.Option(help="Of the weights.")] = "float32",
) -> None:
    """Write a run as a Hugging Face folder."""
    from mnemax.launch.convert import export_run

    export_run(folder, out, step, dtype)


@app.command(name="import")
def import_(
    source: Annotated[Path, typer.Argument(metavar="HF_DIR", help="A Hugging Face folder.", show_default=False)],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="A new run's folder.", show_default=False)],
) -> None:
    """Read a Hugging Face folder as a run's folder, to sample, describe or export."""
    from mnemax.launch.convert import import_folder

    import_folder(source, out)


@app.command()
def convert(
    folder: RunFolder,
    out: Annotated[Path, typer.Option(help="The new model's folder.", show_default=False)],
    overrides: Overrides = None,
    to: Annotated[str | None, typer.Option(metavar="CONFIG", help="The new model's configuration; default: RUN's own.")] = None,
    step: Annotated[int | None, typer.Option(help="A checkpoint's step; default: the newest.")] = None,
    calibrate: Annotated[int, typer.Option(help="Tokens of RUN's data to fit latents to; 0: the weights alone.", min=0)] = 8192,
) -> None:
    """Turn a model into one of a smaller cache, fewer heads, shared layers or a latent, to train on from there."""
    from mnemax.launch.convert import convert_run

    _cache_compilations()
    convert_run(folder, to, overrides or [], out, step, calibrate)


@data_app.command()
def prepare(
    sources: Sources,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The new folder of shards.", show_default=False)],
    tokenizer: Annotated[str, typer.Option(help="bytes, embedded, or a tokenizer.json or its folder.")] = "bytes",
    skip_bad: SkipBad = False,
) -> None:
    """Tokenize once into array_record shards, for sources of kind `prepared`."""
    from mnemax.data.prepare import prepare

    index = prepare(sources, out, _tokenizer(tokenizer), skip_bad=skip_bad)
    print(f"{out}: {index['documents']:,} documents, {index['tokens']:,} tokens.")


@data_app.command()
def train_tokenizer(
    sources: Sources,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The tokenizer's new folder.", show_default=False)],
    vocab_size: Annotated[int, typer.Option(help="Ids at most: 256 bytes, merges, and one special token.", min=257)] = 4096,
    skip_bad: SkipBad = False,
) -> None:
    """Train a byte-level BPE, written as tokenizer.json."""
    from mnemax.data.prepare import train_tokenizer

    tokenizer = train_tokenizer(sources, out, vocab_size, skip_bad=skip_bad)
    print(f"{out}: {tokenizer.vocab_size:,} ids; use it as data.tokenizer={{kind: hf, path: {out}}}.")


def _split(config: str, overrides: list[str] | None) -> tuple[str, list[str]]:
    """The configuration and the overrides, the first of which may stand in the configuration's place."""
    from mnemax.configs.load import DEFAULT

    words = [config, *(overrides or [])] if config else []
    return (words[0], words[1:]) if words and "=" not in words[0] else (DEFAULT, words)


def _tokenizer(name: str):
    from mnemax.data.config import BytesTokenizer, EmbeddedTokenizer, HFTokenizer

    match name:
        case "bytes":
            return BytesTokenizer()
        case "embedded":
            return EmbeddedTokenizer()
        case _:
            return HFTokenizer(path=name)


def _cache_compilations() -> None:
    """Keeps compiled programs between processes, so that resuming and sampling start fast."""
    import jax

    folder = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "mnemax" / "jax"
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)


def _show_warnings(debug: bool) -> None:
    """The package's own warnings are said as errors are, in a sentence to stderr; those of libraries are for debugging.

    Libraries log an exception with its traceback before they raise it, and it is told when it arrives.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("mnemax: %(message)s"))
    if not debug:
        handler.addFilter(logging.Filter("mnemax"))
    logging.basicConfig(handlers=[handler], force=True)


def main() -> None:
    """Entry point: a user's mistake is one sentence and exit code 2; `--debug` anywhere shows the traceback."""
    debug = "--debug" in sys.argv
    if debug:
        sys.argv.remove("--debug")
    _show_warnings(debug)
    try:
        app()
        return
    except UserError as error:
        if debug:
            raise
        sentence = f"mnemax: {error}"
    # Outside of the block the error is forgotten, and what its traceback still held open closes before the interpreter does.
    print(sentence, file=sys.stderr)
    raise SystemExit(2)
