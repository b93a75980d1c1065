"""Samples on the console."""

import itertools
from pathlib import Path

from rich.console import Console

from mnemax.data.tokenizers import Tokenizer
from mnemax.errors import UserError
from mnemax.evaluation.accounting import human
from mnemax.models.folder import Model
from mnemax.models.generate import Generator, Sampling, Speed


def prompt_ids(tokenizer: Tokenizer, prompt: str) -> list[int]:
    """A prompt as its tokenizer begins a text; an empty one begins a document."""
    start = tokenizer.bos if prompt else tokenizer.start
    return ([] if start is None else [start]) + tokenizer.encode(prompt)


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
    generator = Generator(model.config, model.params, sampling)
    for _ in itertools.islice(generator.stream(ids, tokens), 2):
        pass  # compiles prefill and step, so that the speed is theirs alone
    for i, row in enumerate(generator.stream(ids, tokens, stop=stop, seed=seed, speed=speed)):
        pieces = ["" if token is None or token in stop else stream.add(token) for stream, token in zip(streams, row, strict=True)]
        texts = [text + piece for text, piece in zip(texts, pieces, strict=True)]
        if len(prompts) == 1:
            print(visible(pieces[0] if i else texts[0]), end="", flush=True)
    if len(prompts) == 1:
        print()
    else:
        for text in texts:
            console.rule()
            print(visible(text))
        console.rule()
    console.print(f"\n[dim]{report(speed)}[/]")


CONTROL = {code: "\N{REPLACEMENT CHARACTER}" for code in (*range(32), 127, *range(128, 160)) if chr(code) not in "\n\t"}


def visible(text: str) -> str:
    """Text with control characters replaced: what a half-trained model says must not reprogram the terminal."""
    return text.translate(CONTROL)


def report(speed: Speed) -> str:
    """Prefill and decode tokens/s, and bytes of decode state."""
    prefill = speed.prompt_tokens / speed.prefill_seconds
    decode = f"{human(speed.new_tokens / speed.decode_seconds)} tokens/s" if speed.decode_seconds else "nothing"
    return f"prefill {human(prefill)} tokens/s · decode {decode} · decode state {human(speed.state_bytes, 'B')}"
