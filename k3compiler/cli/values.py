"""Argument values with a grammar of their own: token ids and prefill chunk sizes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import typer


def parse_ids(text: str, *, option: str) -> list[int]:
    """``1,2,3``, or ``@ids.npy`` for a one-dimensional integer array in a file."""
    if text.startswith("@"):
        return _load_ids(Path(text[1:]), option)
    return _integers(text, option, low=0)


def parse_chunks(text: str | None, num_tokens: int) -> list[int]:
    """Prefill chunk sizes that sum to ``num_tokens``; the last one given repeats, and is cut at the end.

    ``None`` is one chunk of everything: ``20,1,1`` of 24 tokens is ``[20, 1, 1, 1, 1]``, ``7`` of 16 is ``[7, 7, 2]``.
    """
    if text is None:
        return [num_tokens]
    sizes = _integers(text, "--chunks", low=1)
    if sum(sizes[:-1]) >= num_tokens > 0 and len(sizes) > 1:
        _refuse(f"{text!r} asks for more chunks than {num_tokens} tokens have", "--chunks")
    return _fill(sizes, num_tokens)


def _fill(sizes: Sequence[int], num_tokens: int) -> list[int]:
    chunks: list[int] = []
    left = num_tokens
    while left > 0:
        size = min(sizes[min(len(chunks), len(sizes) - 1)], left)
        chunks.append(size)
        left -= size
    return chunks


def _load_ids(path: Path, option: str) -> list[int]:
    import numpy as np

    try:
        ids = np.load(path, allow_pickle=False)
    except (ValueError, EOFError) as fault:
        _refuse(f"{path} is not an .npy file: {fault}", option)
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        _refuse(f"{path} holds {ids.dtype} of shape {ids.shape}, not a row of integers", option)
    return [int(value) for value in ids]


def _integers(text: str, option: str, *, low: int) -> list[int]:
    try:
        values = [int(item) for item in text.split(",")]
    except ValueError:
        _refuse(f"{text!r} is not a list of integers such as 1,2,3", option)
    if min(values) < low:
        _refuse(f"{min(values)} in {text!r} is below {low}", option)
    return values


def _refuse(message: str, option: str) -> NoReturn:
    raise typer.BadParameter(message, param_hint=option)
