"""The tokenizer of synthetic tasks, whose tokens are symbols without a text."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import Tokenizer


def symbols_backend(vocab_size: int) -> "Tokenizer":
    """Ids 0 to `vocab_size` - 1, written as numbers with spaces between them."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    backend = Tokenizer(models.WordLevel({str(i): i for i in range(vocab_size)}))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return backend
