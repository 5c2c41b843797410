"""K3's tokenizer: tiktoken ranks, the K2-style pre-tokeniser, special ids after the ranks.

User text is encoded with special tokens disabled: ``<|open|>`` typed by a user is ordinary text.
Source: spec section 7.2.
"""

from __future__ import annotations

import base64
import binascii
import codecs
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from k3compiler.errors import K3Error

MODEL_FILE = "tiktoken.model"
CONFIG_FILE = "tokenizer_config.json"
NUM_SPECIAL_SLOTS = 256
MAX_PIECE_CHARS = 400_000
MAX_RUN_CHARS = 25_000

_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_LEAD = r"[^\r\n\p{L}\p{N}]?"
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
PATTERN = "|".join(
    [
        r"[\p{Han}]+",
        f"{_LEAD}{_UPPER}*{_LOWER}+{_CONTRACTION}",
        f"{_LEAD}{_UPPER}+{_LOWER}*{_CONTRACTION}",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)
_RUN = re.compile(rf"\s{{1,{MAX_RUN_CHARS}}}|\S{{1,{MAX_RUN_CHARS}}}")


class Tokenizer:
    """Text to ids and back.

    Args:
        directory: holds ``tiktoken.model`` and, where special tokens have names,
            ``tokenizer_config.json``.
        vocab_size: ids the model knows; special slots past it are left out.

    Raises:
        K3Error: K3-R008.
    """

    def __init__(self, directory: str | Path, *, vocab_size: int | None = None) -> None:
        import tiktoken

        root = Path(directory)
        ranks = _read_ranks(root / MODEL_FILE)
        self.special_ids = _special_ids(root / CONFIG_FILE, len(ranks), vocab_size)
        self._encoding = tiktoken.Encoding(
            "k3", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens=self.special_ids
        )
        self.num_tokens = self._encoding.n_vocab

    def encode(self, text: str) -> list[int]:
        """Ids of a text; nothing in it is special, nothing is added."""
        ids: list[int] = []
        for piece in _pieces(text):
            ids.extend(self._encoding.encode_ordinary(piece))
        return ids

    def token_bytes(self, token: int) -> bytes:
        """The bytes of one token (a special token's name); nothing for an id without a token."""
        try:
            return self._encoding.decode_single_token_bytes(token)
        except KeyError:
            return b""

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ``ids``; bytes that are not UTF-8 become U+FFFD."""
        return b"".join(map(self.token_bytes, ids)).decode("utf-8", errors="replace")


class StreamDecoder:
    """Text piece by piece as tokens come: a character appears when its last byte has."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token: int, *, is_last: bool = False) -> str:
        """The text that ``token`` completes."""
        return self._utf8.decode(self._tokenizer.token_bytes(token), is_last)

    def finish(self) -> str:
        """What is left of an unfinished character."""
        return self._utf8.decode(b"", True)


def _pieces(text: str) -> Iterator[str]:
    """Cut very long inputs where the published tokenizer does, before BPE."""
    for start in range(0, len(text), MAX_PIECE_CHARS):
        piece = text[start : start + MAX_PIECE_CHARS]
        if len(piece) <= MAX_RUN_CHARS:
            yield piece
        else:
            yield from _cut_runs(piece)


def _cut_runs(text: str) -> Iterator[str]:
    """Cut after every 25,000 consecutive characters of one kind (space or not)."""
    start = 0
    for run in _RUN.finditer(text):
        if len(run.group()) == MAX_RUN_CHARS and run.end() < len(text):
            yield text[start : run.end()]
            start = run.end()
    if start < len(text):
        yield text[start:]


def _read_ranks(path: Path) -> dict[bytes, int]:
    if not path.is_file():
        raise _unusable(path, "a tiktoken.model file", "no such file")
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        if not line:
            continue
        try:
            token, rank = line.split()
            ranks[base64.b64decode(token, validate=True)] = int(rank)
        except (ValueError, binascii.Error):
            found = repr(line[:40])
            raise _unusable(path, f"base64 and a rank in line {number}", found) from None
    if sorted(ranks.values()) != list(range(len(ranks))):
        raise _unusable(path, "ranks 0, 1, 2, ... once each", f"{len(ranks)} tokens")
    if any(bytes([b]) not in ranks for b in range(256)):
        raise _unusable(path, "a rank for every single byte", "bytes without one")
    return ranks


def _special_ids(path: Path, num_ranks: int, vocab_size: int | None) -> dict[str, int]:
    end = num_ranks + NUM_SPECIAL_SLOTS
    if vocab_size is not None:
        if vocab_size < num_ranks:
            raise _unusable(path.parent, f"at most {vocab_size} ranks", f"{num_ranks}")
        end = min(end, vocab_size)
    named = _named_tokens(path) if path.is_file() else {}
    ids = {f"<|reserved_token_{i}|>": i for i in range(num_ranks, end) if i not in named}
    return ids | {name: i for i, name in named.items() if num_ranks <= i < end}


def _named_tokens(path: Path) -> dict[int, str]:
    try:
        table: dict[str, Any] = json.loads(path.read_text())["added_tokens_decoder"]
        return {int(i): str(entry["content"]) for i, entry in table.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as fault:
        found = f"{type(fault).__name__}: {fault}"
        raise _unusable(path, "JSON with added_tokens_decoder", found) from None


def _unusable(path: Path, expected: str, found: str) -> K3Error:
    hint = "pass token ids instead of text, or copy the tokenizer files beside the weights"
    return K3Error("K3-R008", where=str(path), expected=expected, found=found, hint=hint)
