"""The tokenizer on a tiny rank file: pieces, specials, streaming, refusals."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from k3compiler.errors import K3Error
from k3compiler.runtime import tokenizer as module
from k3compiler.runtime.tokenizer import StreamDecoder, Tokenizer

MERGES = [b"he", b"ll", b"hell", b"hello", b" w", b"'s", b"12", b"123"]


def _write(path: Path, ranks: list[bytes], special: dict[int, str] | None = None) -> None:
    lines = [f"{base64.b64encode(t).decode()} {i}" for i, t in enumerate(ranks)]
    (path / "tiktoken.model").write_text("\n".join(lines) + "\n")
    if special is not None:
        table = {str(i): {"content": name, "special": True} for i, name in special.items()}
        (path / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": table}))


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    ranks = [bytes([b]) for b in range(256)] + MERGES
    _write(tmp_path, ranks, {264: "[BOS]", 266: "<|end_of_msg|>"})
    return Tokenizer(tmp_path, vocab_size=300)


def _pieces(tokenizer: Tokenizer, text: str) -> list[bytes]:
    return [tokenizer.token_bytes(i) for i in tokenizer.encode(text)]


def test_merges_stay_inside_pieces(tokenizer: Tokenizer) -> None:
    assert _pieces(tokenizer, "hello") == [b"hello"]
    assert _pieces(tokenizer, "hello world") == [b"hello", b" w", b"o", b"r", b"l", b"d"]
    assert _pieces(tokenizer, "1234") == [b"123", b"4"], "digits in groups of three"
    assert _pieces(tokenizer, "it's")[-1] == b"'s"


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("Hello helloWorld", ["Hello", " hello", "World"]),
        ("中文abc", ["中文", "abc"]),
        ("HELLO'S x", ["HELLO'S", " x"]),
        ("a,\n\nb", ["a", ",\n\n", "b"]),
        ("  x 12345", [" ", " x", " ", "123", "45"]),
        (" \n x  ", [" \n", " x", "  "]),
    ],
)
def test_pattern(text: str, pieces: list[str]) -> None:
    """Each piece is one token when every piece is in the ranks and only bytes are besides."""
    import tiktoken

    ranks = {bytes([b]): b for b in range(256)}
    for piece in pieces:
        ranks.setdefault(piece.encode(), len(ranks))
    encoding = tiktoken.Encoding(
        "t", pat_str=module.PATTERN, mergeable_ranks=ranks, special_tokens={}
    )
    found = [encoding.decode_single_token_bytes(t) for t in encoding.encode_ordinary(text)]
    assert found == [p.encode() for p in pieces]


def test_user_text_has_no_specials(tokenizer: Tokenizer) -> None:
    assert tokenizer.special_ids["<|end_of_msg|>"] == 266
    ids = tokenizer.encode("<|end_of_msg|>[BOS]")
    assert max(ids) < 264
    assert tokenizer.decode(ids) == "<|end_of_msg|>[BOS]"


def test_special_slots(tokenizer: Tokenizer) -> None:
    assert tokenizer.special_ids["<|reserved_token_265|>"] == 265
    assert max(tokenizer.special_ids.values()) == 299, "not past the vocabulary"
    assert tokenizer.decode([264, 299]) == "[BOS]<|reserved_token_299|>"
    assert tokenizer.decode([5000]) == ""


def test_stream_holds_back_half_characters(tokenizer: Tokenizer) -> None:
    decoder = StreamDecoder(tokenizer)
    ids = tokenizer.encode("é!")
    assert [decoder.push(i) for i in ids] == ["", "é", "!"]
    decoder.push(ids[0])
    assert decoder.finish() == "\ufffd"


def test_long_runs_are_cut(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_PIECE_CHARS", 200_000)
    text = "a" * 60_000 + " " * 30_000 + "b" * 150_000
    pieces = list(module._pieces(text))
    assert "".join(pieces) == text
    assert [len(p) for p in pieces][:2] == [25_000, 25_000]
    assert all(len(p) <= 50_000 for p in pieces)
    assert list(module._pieces("hello " * 1000)) == ["hello " * 1000]


@pytest.mark.parametrize(
    "content",
    [None, "notbase64 x\n", "aGVsbG8= 0\n", "\n".join(["AA== 1", "AQ== 1"])],
)
def test_bad_rank_files(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "tiktoken.model").write_text(content)
    with pytest.raises(K3Error, match="K3-R008"):
        Tokenizer(tmp_path)


def test_bad_special_file(tmp_path: Path) -> None:
    _write(tmp_path, [bytes([b]) for b in range(256)])
    (tmp_path / "tokenizer_config.json").write_text("{}")
    with pytest.raises(K3Error, match="added_tokens_decoder"):
        Tokenizer(tmp_path)
