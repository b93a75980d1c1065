"""The configuration of data: where text comes from and how it becomes batches."""

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from mnemax import registry
from mnemax.configs.base import Config, Fraction, PositiveInt
from mnemax.data.sources import SourceConfig
from mnemax.data.sources.embedded import EmbeddedSource

if TYPE_CHECKING:
    Source = SourceConfig
else:
    Source = registry.union("source")


class BytesTokenizer(Config):
    """The 256 bytes of UTF-8, and one special token (id 256) that starts and ends a document."""

    kind: Literal["bytes"] = "bytes"


class EmbeddedTokenizer(Config):
    """A byte-level BPE trained on the embedded corpus, shipped with the package."""

    kind: Literal["embedded"] = "embedded"
    vocab_size: PositiveInt = 2048


class HFTokenizer(Config):
    """Any Hugging Face fast tokenizer."""

    kind: Literal["hf"] = "hf"
    path: str
    """A `tokenizer.json`, or a folder that holds one."""


class SymbolsTokenizer(Config):
    """The symbols of synthetic tasks: ids written as numbers, separated by spaces; no special tokens."""

    kind: Literal["symbols"] = "symbols"
    vocab_size: PositiveInt


TokenizerConfig = Annotated[BytesTokenizer | EmbeddedTokenizer | HFTokenizer | SymbolsTokenizer, Field(discriminator="kind")]


class DataConfig(Config):
    """What a run reads: a mixture of sources, cut into rows of one length."""

    tokenizer: TokenizerConfig = BytesTokenizer()
    sources: Annotated[tuple[Source, ...], Field(min_length=1)] = (EmbeddedSource(),)
    """Mixed by their `weight`, the share of the rows that each gives."""
    sequence_length: PositiveInt = 512
    """Tokens a row."""
    batch_size: PositiveInt = 16
    """Rows a step, over all processes."""
    packing: Literal["concat", "first_fit"] = "concat"
    """concat: documents end to end, cut at every row's end, no padding. first_fit: a document that fits a row is never cut."""
    validation: tuple[Source, ...] = ()
    """Held-out text; empty: each source's own held-out split, or else `validation_fraction` of it."""
    validation_fraction: Fraction = 0.05
    """The part of a source without a split of its own that is held out: every k-th document, or the end of each if they are few."""
    skip_bad: bool = False
    """Counts and skips malformed items (a JSONL line, an unreadable text file of several), instead of stopping."""
