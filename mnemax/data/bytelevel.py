"""Building byte-level tokenizers: the bare bytes, and byte-pair encodings trained on text."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from mnemax.errors import UserError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

END_OF_TEXT = "<|endoftext|>"


def byte_alphabet() -> str:
    """The characters that stand for bytes 0 to 255 in byte-level vocabularies (GPT-2).

    Printable Latin-1 stands for itself, and U+0100 onwards for the rest in order.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    rest = iter(range(0x100, 0x200))
    return "".join(chr(i if i in printable else next(rest)) for i in range(256))


def bytes_backend() -> "Tokenizer":
    """Ids 0 to 255 are the bytes, 256 is END_OF_TEXT."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    backend = Tokenizer(models.BPE({character: i for i, character in enumerate(byte_alphabet())}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    return _with_end_of_text(backend)


def train_bpe(texts: Iterable[str], vocab_size: int) -> "Tokenizer":
    """A byte-level BPE of at most `vocab_size` ids, the last of them END_OF_TEXT.

    Raises:
        UserError: the vocabulary has no room for the bytes.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    if vocab_size <= 256:
        raise UserError(f"vocab_size is {vocab_size}; a byte-level BPE holds 256 bytes and one special token, so at least 257.")
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocab_size - 1, initial_alphabet=list(byte_alphabet()), show_progress=False)
    backend.train_from_iterator(texts, trainer)
    return _with_end_of_text(backend)


def _with_end_of_text(backend: "Tokenizer") -> "Tokenizer":
    """Adds END_OF_TEXT as the last id, put before every text."""
    from tokenizers import AddedToken
    from tokenizers.processors import TemplateProcessing

    backend.add_special_tokens([AddedToken(END_OF_TEXT, special=True, normalized=False)])
    end = backend.token_to_id(END_OF_TEXT)
    backend.post_processor = TemplateProcessing(single=f"{END_OF_TEXT} $A", special_tokens=[(END_OF_TEXT, end)])
    return backend
