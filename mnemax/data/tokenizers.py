"""Tokenizers: text to ids and back, and how many bytes of text each id stands for."""

import codecs
import contextlib
import hashlib
import json
import re
from collections.abc import Generator, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Int32

from mnemax.data.bytelevel import END_OF_TEXT, byte_alphabet, bytes_backend
from mnemax.data.config import BytesTokenizer, EmbeddedTokenizer, HFTokenizer, SymbolsTokenizer
from mnemax.data.sources import reason
from mnemax.data.symbols import symbols_backend
from mnemax.errors import UserError

if TYPE_CHECKING:
    import tokenizers

EMBEDDED = Path(__file__).parent / "embedded" / "tokenizers"
BATCH_CHARACTERS = 1 << 20


class Tokenizer:
    """A Hugging Face `tokenizers.Tokenizer` with what training needs.

    Text is only text: the name of a special token inside it is encoded as ordinary characters.
    """

    def __init__(self, backend: "tokenizers.Tokenizer", config: dict[str, Any] | None = None) -> None:
        """`config` is the content of `tokenizer_config.json`, where there is one."""
        self.backend = backend
        self.config = config or {}
        backend.encode_special_tokens = True
        backend.no_padding()
        backend.no_truncation()
        self._vocabulary = backend.get_vocab(with_added_tokens=True)
        self.vocab_size = max(self._vocabulary.values(), default=-1) + 1
        self.dtype = np.uint16 if self.vocab_size <= 1 << 16 else np.uint32
        self.eos = self._special("eos_token", (END_OF_TEXT, "</s>", "<eos>", "<|end_of_text|>", "[SEP]"))
        self.bos = self._bos()

    @property
    def start(self) -> int | None:
        """What a document starts with: bos, or eos where the tokenizer itself puts nothing before a text."""
        return self.eos if self.bos is None else self.bos

    def encode(self, text: str) -> list[int]:
        """Ids of a text, with no special tokens.

        Raises:
            UserError: the vocabulary cannot spell it.
        """
        with self._spelling(text):
            return self.backend.encode(text, add_special_tokens=False).ids

    @contextlib.contextmanager
    def _spelling(self, text: str) -> Generator[None]:
        try:
            yield
        except Exception as error:  # tokenizers raises bare Exception
            raise UserError(f"The tokenizer of {self.vocab_size} ids cannot spell {text[:40]!r}: {reason(error)}.") from error

    def decode(self, ids: Iterable[int]) -> str:
        """Text of ids without the special ones and those of no token; bytes that are no UTF-8 become U+FFFD."""
        known = [i for i in ids if i < self.vocab_size]  # a model's vocabulary may be padded
        if self._byte_pieces is None:
            return self.backend.decode(known, skip_special_tokens=True)
        return b"".join(self._byte_pieces[i] for i in known).decode("utf-8", "replace")

    def stream(self) -> "Stream":
        """Decodes ids as they come."""
        return Stream(self)

    def documents(self, texts: Iterable[str]) -> Iterator[np.ndarray]:
        """The ids of each text, of type `dtype`, between `start` and `eos` where there are such tokens."""
        before, after = ([] if token is None else [token] for token in (self.start, self.eos))
        for ids in self._encode_all(texts):
            yield np.concatenate([before, ids, after]).astype(self.dtype)

    def _encode_all(self, texts: Iterable[str]) -> Iterator[np.ndarray]:
        for group in _groups(texts):
            parts = [_parts(text) if self._byte_pieces is not None else [text] for text in group]
            flat = [part for text in parts for part in text]
            with self._spelling(flat[0]):
                encoded = iter(self.backend.encode_batch_fast(flat, add_special_tokens=False))
            for text in parts:
                yield np.concatenate([np.asarray(next(encoded).ids, self.dtype) for _ in text])

    @cached_property
    def token_bytes(self) -> Int32[np.ndarray, " V"]:
        """Bytes of UTF-8 text that each id stands for, 0 for special ones and for words that stand between unknown spaces.

        Exact for byte-level vocabularies; for SentencePiece-like ones up to the space put before a text.
        """
        sizes = np.zeros(self.vocab_size, np.int32)
        if self._spec["model"]["type"] == "WordLevel":
            return sizes
        if self._byte_pieces is not None:
            sizes[:] = [len(piece) for piece in self._byte_pieces]
            return sizes
        for token, i in self._vocabulary.items():
            byte = re.fullmatch(r"<0x[0-9A-Fa-f]{2}>", token)
            sizes[i] = 1 if byte else len(token.replace("▁", " ").encode("utf-8", "replace"))
        sizes[self._specials] = 0
        return sizes

    @cached_property
    def fingerprint(self) -> str:
        """Identifies how text is encoded: equal for equal tokenizers, wherever they were read from."""
        used = {key: self._spec[key] for key in ("model", "normalizer", "pre_tokenizer", "added_tokens")}
        used["ends"] = (self.start, self.eos)
        return hashlib.sha256(json.dumps(used, sort_keys=True).encode()).hexdigest()

    def save(self, folder: str | Path) -> None:
        """Writes `tokenizer.json` and `tokenizer_config.json`, which transformers' AutoTokenizer reads."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "tokenizer.json").write_text(self.backend.to_str(pretty=True), "utf-8")
        names = {i: token for token, i in self._vocabulary.items()}
        written = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": False,
        }
        written |= {key: names[i] for key, i in (("bos_token", self.bos), ("eos_token", self.eos)) if i is not None}
        (folder / "tokenizer_config.json").write_text(json.dumps(self.config or written, indent=2) + "\n")

    @cached_property
    def _spec(self) -> dict[str, Any]:
        """The content of `tokenizer.json`."""
        return json.loads(self.backend.to_str())

    @property
    def _specials(self) -> list[int]:
        return [token["id"] for token in self._spec["added_tokens"] if token["special"]]

    @cached_property
    def _byte_pieces(self) -> list[bytes] | None:
        """The bytes of each id, empty for special ones; None if the vocabulary is not byte-level."""
        decoder = self._spec["decoder"] or {}
        if "ByteLevel" not in [part.get("type") for part in (decoder, *decoder.get("decoders", []))]:
            return None
        byte = {character: i for i, character in enumerate(byte_alphabet())}
        pieces = [b""] * self.vocab_size
        added = {token["id"]: token for token in self._spec["added_tokens"]}
        for token, i in self._vocabulary.items():
            if i not in added:
                pieces[i] = bytes(byte[character] for character in token)
            elif not added[i]["special"]:
                pieces[i] = token.encode()
        return pieces

    def _special(self, name: str, usual: Sequence[str]) -> int | None:
        """The id of a special token as the configuration names it, or else by its usual names."""
        token = self.config.get(name)
        token = token["content"] if isinstance(token, dict) else token
        candidates = [token] if token or name in self.config else usual
        return next((self._vocabulary[t] for t in candidates if t in self._vocabulary), None)

    def _bos(self) -> int | None:
        """What the tokenizer itself puts before a text."""
        if self._spec["post_processor"] is None:
            return None
        ids = self.backend.encode("a", add_special_tokens=True).ids
        return ids[0] if ids and ids[0] in self._specials else None


class ByteTokenizer(Tokenizer):
    """UTF-8 bytes as ids 0 to 255; id 256 starts and ends a document."""

    def encode(self, text: str) -> list[int]:
        return list(text.encode("utf-8"))

    def _encode_all(self, texts: Iterable[str]) -> Iterator[np.ndarray]:
        return (np.frombuffer(text.encode("utf-8"), np.uint8) for text in texts)


class Stream:
    """Incremental decoding: each `add` gives the characters that its id completes."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        from tokenizers.decoders import DecodeStream

        self._tokenizer = tokenizer
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._stream = DecodeStream(skip_special_tokens=True)

    def add(self, token: int) -> str:
        """The complete characters up to and with this id, after those given before; maybe none."""
        if token >= self._tokenizer.vocab_size:
            return ""
        if (pieces := self._tokenizer._byte_pieces) is not None:
            return self._utf8.decode(pieces[token])
        return self._stream.step(self._tokenizer.backend, token) or ""


def load_tokenizer(
    config: BytesTokenizer | EmbeddedTokenizer | HFTokenizer | SymbolsTokenizer,
) -> Tokenizer:
    """The tokenizer that a configuration means.

    Raises:
        UserError: there is none at its path, or none shipped of its size, or the file is damaged.
    """
    match config:
        case BytesTokenizer():
            return ByteTokenizer(bytes_backend())
        case SymbolsTokenizer():
            return Tokenizer(symbols_backend(config.vocab_size))
        case EmbeddedTokenizer():
            path = EMBEDDED / f"bpe-{config.vocab_size}.json"
            if not path.is_file():
                sizes = sorted(int(p.stem.removeprefix("bpe-")) for p in EMBEDDED.glob("bpe-*.json"))
                known = ", ".join(map(str, sizes))
                raise UserError(
                    f"data.tokenizer.vocab_size is {config.vocab_size}; the sizes shipped with the package are {known}."
                )
            return _read(path)
        case HFTokenizer():
            path = Path(config.path).expanduser()
            path = path / "tokenizer.json" if path.is_dir() else path
            if not path.is_file():
                raise UserError(f"data.tokenizer.path: {config.path} is neither a tokenizer.json nor a folder that holds one.")
            return _read(path)


def check_vocabulary(tokenizer: Tokenizer, model_vocab_size: int) -> None:
    """
    Raises:
        UserError: the tokenizer has more ids than the model.
    """
    if tokenizer.vocab_size > model_vocab_size:
        raise UserError(
            f"The tokenizer (data.tokenizer) has {tokenizer.vocab_size} ids, more than model.vocab_size, {model_vocab_size}; "
            f"set model.vocab_size to at least {tokenizer.vocab_size}."
        )


def _read(path: Path) -> Tokenizer:
    from tokenizers import Tokenizer as Backend

    try:
        backend = Backend.from_file(str(path))
        beside = path.with_name("tokenizer_config.json")
        config = json.loads(beside.read_text("utf-8")) if beside.is_file() else None
    except Exception as error:  # tokenizers raises bare Exception
        raise UserError(f"data.tokenizer: {path} or its tokenizer_config.json cannot be read: {reason(error)}.") from error
    return Tokenizer(backend, config)


def _groups(texts: Iterable[str]) -> Iterator[list[str]]:
    """Consecutive texts of about BATCH_CHARACTERS together: one call of the tokenizer, which runs on all cores."""
    group, size = [], 0
    for text in texts:
        group.append(text)
        size += len(text)
        if size >= BATCH_CHARACTERS:
            yield group
            group, size = [], 0
    if group:
        yield group


def _parts(text: str) -> list[str]:
    """A long text cut at a lone line feed between words, across which no byte-level pre-tokenizer joins or looks."""
    parts, start = [], 0
    while len(text) - start > BATCH_CHARACTERS and (cut := re.compile(r"(?<=\S)\n(?=\S)").search(text, start + BATCH_CHARACTERS)):
        parts.append(text[start : cut.end()])
        start = cut.end()
    return [*parts, text[start:]]
