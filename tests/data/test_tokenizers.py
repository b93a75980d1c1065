"""Tokenizers against UTF-8 itself, and against transformers."""

import random
from pathlib import Path

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from mnemax.data import tokenizers
from mnemax.data.bytelevel import train_bpe
from mnemax.data.config import BytesTokenizer, EmbeddedTokenizer, HFTokenizer, SymbolsTokenizer
from mnemax.data.tokenizers import Tokenizer, check_vocabulary, load_tokenizer
from mnemax.errors import UserError

CONFIGS = [BytesTokenizer(), EmbeddedTokenizer()]
TEXTS = [
    "",
    "a",
    "When shall we three meet again?\n\n  In thunder,\tlightning",
    "naïve 漢字 😀\u200d🔥 é\r\n",
    "<|endoftext|> is text",
]


@pytest.fixture(params=CONFIGS, ids=lambda config: config.kind)
def tokenizer(request):
    return load_tokenizer(request.param)


@pytest.mark.parametrize("text", TEXTS)
def test_round_trip_and_bytes(tokenizer, text):
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer.token_bytes[ids].sum() == len(text.encode())
    assert tokenizer.bos not in ids


def test_special_tokens_are_no_text(tokenizer):
    assert tokenizer.bos == tokenizer.eos == tokenizer.vocab_size - 1
    assert tokenizer.token_bytes[tokenizer.eos] == 0
    assert tokenizer.token_bytes.shape == (tokenizer.vocab_size,)
    assert tokenizer.decode([tokenizer.bos, *tokenizer.encode("yes"), tokenizer.eos]) == "yes"


def test_bytes_are_ids():
    tokenizer = load_tokenizer(BytesTokenizer())
    assert tokenizer.vocab_size == 257
    assert tokenizer.encode("é!") == list("é!".encode())
    assert tokenizer.backend.encode("é!", add_special_tokens=False).ids == list("é!".encode())


def test_documents_have_ends(tokenizer):
    documents = list(tokenizer.documents(TEXTS))
    assert [ids.tolist() for ids in documents] == [[tokenizer.bos, *tokenizer.encode(text), tokenizer.eos] for text in TEXTS]


def test_a_long_text_is_encoded_as_a_whole(monkeypatch):
    rng = random.Random(0)
    text = "".join(rng.choice(["to be", " or", " not\n", "\n", "\n\n", "  ", "?", "\t12"]) for _ in range(3000))
    tokenizer = Tokenizer(train_bpe([text], 320))
    assert len(tokenizer.encode("a\n\n")) == 2
    expected = tokenizer.encode(text)
    monkeypatch.setattr(tokenizers, "BATCH_CHARACTERS", 50)
    (ids,) = tokenizer.documents([text])
    assert ids[1:-1].tolist() == expected


def test_stream_gives_whole_characters(tokenizer):
    text = TEXTS[3] * 3
    stream = tokenizer.stream()
    parts = [stream.add(i) for i in [tokenizer.bos, *tokenizer.encode(text), tokenizer.eos]]
    assert "".join(parts) == text
    assert "\ufffd" not in "".join(parts)


def test_stream_goes_on_after_bytes_that_are_no_text():
    stream = load_tokenizer(BytesTokenizer()).stream()
    assert "".join(stream.add(i) for i in [0xC3, 0x61, 0xFF, 0xE6, 0xBC, 0xA2]) == "\ufffda\ufffd漢"


def sentencepiece_like() -> Backend:
    vocabulary = {"<unk>": 0, "</s>": 1, **{f"<0x{i:02X}>": i + 2 for i in range(256)}, "▁": 258, "a": 259, "b": 260, "▁a": 261}
    backend = Backend(models.BPE(vocabulary, [("▁", "a")], unk_token="<unk>", byte_fallback=True))
    backend.add_special_tokens(["<unk>", "</s>"])
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Sequence([decoders.Metaspace(), decoders.ByteFallback(), decoders.Fuse()])
    return backend


def test_byte_fallback_vocabulary(tmp_path: Path):
    sentencepiece_like().save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(HFTokenizer(path=str(tmp_path)))
    text = "ab a é"
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer.token_bytes[ids].sum() == len(text.encode()) + 1
    assert (tokenizer.bos, tokenizer.eos, tokenizer.start) == (None, 1, 1)
    stream = tokenizer.stream()
    assert "".join(stream.add(i) for i in ids) == text


def test_save_and_load(tokenizer, tmp_path: Path):
    tokenizer.save(tmp_path)
    again = load_tokenizer(HFTokenizer(path=str(tmp_path)))
    assert again.fingerprint == tokenizer.fingerprint
    assert (again.vocab_size, again.bos, again.eos) == (tokenizer.vocab_size, tokenizer.bos, tokenizer.eos)
    for text in TEXTS:
        assert again.encode(text) == tokenizer.encode(text)


@pytest.mark.torch
def test_transformers_reads_it(tokenizer, tmp_path: Path):
    transformers = pytest.importorskip("transformers")
    tokenizer.save(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in TEXTS[:-1]:
        assert theirs(text)["input_ids"] == [tokenizer.bos, *tokenizer.encode(text)]
        assert theirs.decode(tokenizer.encode(text)) == text
    assert (theirs.bos_token_id, theirs.eos_token_id) == (tokenizer.bos, tokenizer.eos)


def test_training_a_bpe():
    text = "the cat and the hat and the bat é " * 50
    tokenizer = Tokenizer(train_bpe([text], 270))
    ids = tokenizer.encode(text)
    assert tokenizer.vocab_size == 270
    assert tokenizer.decode(ids) == text
    assert len(ids) < len(text) / 2


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (HFTokenizer(path="nowhere/tokenizer.json"), "nowhere/tokenizer.json is neither a tokenizer.json nor a folder"),
        (EmbeddedTokenizer(vocab_size=7), "data.tokenizer.vocab_size is 7; the sizes shipped with the package are"),
    ],
)
def test_unknown_tokenizers(config, message):
    with pytest.raises(UserError, match=message):
        load_tokenizer(config)


def test_damaged_tokenizer(tmp_path: Path):
    (tmp_path / "tokenizer.json").write_text('{"model": ')
    with pytest.raises(UserError, match=r"tokenizer\.json.* cannot be read"):
        load_tokenizer(HFTokenizer(path=str(tmp_path)))


def test_a_vocabulary_larger_than_the_models():
    tokenizer = load_tokenizer(BytesTokenizer())
    check_vocabulary(tokenizer, 257)
    with pytest.raises(UserError, match=r"257 ids, more than model\.vocab_size, 256"):
        check_vocabulary(tokenizer, 256)


def test_a_vocabulary_too_small_for_bytes():
    with pytest.raises(UserError, match="vocab_size is 256"):
        train_bpe(["text"], 256)


def test_text_that_symbols_cannot_spell():
    tokenizer = load_tokenizer(SymbolsTokenizer(vocab_size=16))
    with pytest.raises(UserError, match="The tokenizer of 16 ids cannot spell 'To be'"):
        list(tokenizer.documents(["To be"]))
