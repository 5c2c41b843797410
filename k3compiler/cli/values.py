"""Argument values with a grammar of their own: token ids and sizes."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import typer

if TYPE_CHECKING:
    from k3compiler.package.reader import Package


def parse_ids(text: str, *, option: str) -> list[int]:
    """``1,2,3``, or ``@ids.npy`` for a one-dimensional integer array in a file."""
    if text.startswith("@"):
        return _load_ids(Path(text[1:]), option)
    return _integers(text, option, low=0)


def parse_sizes(text: str, *, option: str) -> list[int]:
    """``20,1,1``: sizes of at least 1."""
    return _integers(text, option, low=1)


def check_kernels(parts: Sequence[str] | None, package: Package) -> None:
    """Refuse a ``--kernel`` that is part of no kernel's symbol."""
    symbols = [kernel.symbol for kernel in package.manifest.kernels]
    for part in parts or ():
        if not any(part in symbol for symbol in symbols):
            near = get_close_matches(part, symbols, n=3, cutoff=0.3)
            hint = f"; the nearest: {', '.join(near)}" if near else ""
            _refuse(f"no kernel's symbol contains {part!r}{hint}", "--kernel")


def _load_ids(path: Path, option: str) -> list[int]:
    import numpy as np

    try:
        ids = np.load(path, allow_pickle=False)
    except (ValueError, EOFError) as fault:
        _refuse(f"{path} is not an .npy file: {fault}", option)
    if not isinstance(ids, np.ndarray):
        _refuse(f"{path} holds several arrays, not a row of integers", option)
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
