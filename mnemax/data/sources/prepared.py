"""Shards of token ids that `mnemax data prepare` wrote."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mnemax.data.sources import BadItems, SourceConfig, reason
from mnemax.errors import UserError

if TYPE_CHECKING:
    import numpy as np

    from mnemax.data.tokenizers import Tokenizer

INDEX = "index.json"
LENGTHS = "lengths.npy"
RECORD_TOKENS = 16_384


class PreparedSource(SourceConfig):
    """Documents tokenised before, read from disk as they are needed."""

    kind: Literal["prepared"] = "prepared"
    path: str
    """The folder that `mnemax data prepare` wrote."""

    def open(self, tokenizer: "Tokenizer", bad: BadItems) -> "PreparedDocuments":
        folder = Path(self.path).expanduser()
        try:
            index = json.loads((folder / INDEX).read_text("utf-8"))
            own = index["tokenizer"]  # other tools write an index.json too
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(f"{self.path} is not a folder that `mnemax data prepare` completed: no readable {INDEX}.") from error
        if own != tokenizer.fingerprint:
            raise UserError(
                f"{self.path} was prepared with another tokenizer ({index['vocab_size']} ids) than data.tokenizer "
                f"({tokenizer.vocab_size} ids); its own is `{{kind: hf, path: {self.path}}}`."
            )
        return PreparedDocuments(folder, index)


class PreparedDocuments:
    """Documents in array_record files. A document is one or more consecutive records, all full but its last."""

    def __init__(self, folder: Path, index: dict[str, Any]) -> None:
        import grain
        import numpy as np

        try:
            self.lengths = np.load(folder / LENGTHS)
            self.records = grain.sources.ArrayRecordDataSource([str(folder / name) for name in index["shards"]])
            count = len(self.records)
        except (OSError, ValueError, RuntimeError) as error:
            raise UserError(f"{folder} is damaged: {reason(error)}; prepare it again.") from error
        self.dtype = np.dtype(index["dtype"])
        self.record_tokens: int = index["record_tokens"]
        self.first_record = np.concatenate([[0], np.cumsum(-(-self.lengths // self.record_tokens))])
        if count != self.first_record[-1]:
            raise UserError(f"{folder} is damaged: {count} records where {self.first_record[-1]} should be; prepare it again.")

    def read(self, document: int, start: int, stop: int) -> "tuple[np.ndarray, None]":
        import numpy as np

        size, first = self.record_tokens, int(self.first_record[document])
        begin, end = int(start) // size, -(-int(stop) // size)
        records = [np.frombuffer(self.records[first + i], self.dtype) for i in range(begin, end)]
        return np.concatenate(records)[start - begin * size : stop - begin * size], None
