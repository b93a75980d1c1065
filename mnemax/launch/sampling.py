"""Samples on the console."""

from pathlib import Path

from rich.console import Console

from mnemax.data.tokenizers import Tokenizer
from mnemax.errors import UserError
from mnemax.evaluation.accounting import human
from mnemax.models.folder import Model
from mnemax.models.generate import Generator, Sampling, Speed


def prompt_ids(tokenizer: Tokenizer, prompt: str) -> list[int]:
    """A prompt as the model saw documents begin: with the start token, where the tokenizer has one."""
    start = [] if tokenizer.start is None else [tokenizer.start]
    return start + tokenizer.encode(prompt)


def stream_sample(model: Model, folder: Path, prompts: list[str], tokens: int, sampling: Sampling, seed: int) -> None:
    """Streams the continuation of one prompt; of several, prints each when all are done. Then the speed.

    Raises:
        UserError: the model has no tokenizer, or a prompt does not fit.
    """
    if model.tokenizer is None:
        raise UserError(f"{folder} has no tokenizer/ to read a prompt with.")
    tokenizer, console, speed = model.tokenizer, Console(highlight=False), Speed()
    ids = [prompt_ids(tokenizer, prompt) for prompt in prompts]
    streams = [tokenizer.stream() for _ in prompts]
    texts = list(prompts)
    stop = [] if tokenizer.eos is None else [tokenizer.eos]
    if len(prompts) == 1:
        print(prompts[0], end="", flush=True)
    for row in Generator(model.config, model.params, sampling).stream(ids, tokens, stop=stop, seed=seed, speed=speed):
        pieces = ["" if token is None or token in stop else stream.add(token) for stream, token in zip(streams, row, strict=True)]
        texts = [text + piece for text, piece in zip(texts, pieces, strict=True)]
        if len(prompts) == 1:
            print(pieces[0], end="", flush=True)
    print()
    if len(prompts) > 1:
        for text in texts:
            console.rule()
            console.print(text, markup=False)
    console.print(f"\n[dim]{report(speed)}[/]")


def report(speed: Speed) -> str:
    """Prefill and decode tokens/s, and bytes of decode state; the first call's compilation is part of prefill."""
    prefill = speed.prompt_tokens / speed.prefill_seconds
    decode = speed.new_tokens / speed.decode_seconds if speed.decode_seconds else 0.0
    return (
        f"prefill {human(prefill)} tokens/s (compilation included), decode {human(decode)} tokens/s, "
        f"decode state {human(speed.state_bytes, 'B')}"
    )
