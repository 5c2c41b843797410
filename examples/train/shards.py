"""Token arrays as compressed shards."""

from __future__ import annotations

import lzma
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

SHARD_SUFFIX = ".u16.xz"
# Two-byte alignment saves 30% against the defaults.
FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 6, "lc": 3, "lp": 1, "pb": 1}]


def write_shard(path: Path, tokens: NDArray[np.uint16]) -> None:
    """One compressed shard of little-endian 16-bit tokens."""
    path.write_bytes(lzma.compress(tokens.astype("<u2").tobytes(), filters=FILTERS))


def read_shard(path: Path) -> NDArray[np.uint16]:
    """The inverse of :func:`write_shard`."""
    return np.frombuffer(lzma.decompress(path.read_bytes()), "<u2").astype(np.uint16)


def read_shards(directory: Path, stem: str) -> NDArray[np.uint16]:
    """All shards ``stem-*.u16.xz`` in order of name."""
    paths = sorted(directory.glob(f"{stem}-*{SHARD_SUFFIX}"))
    if not paths:
        raise FileNotFoundError(f"no {stem}-*{SHARD_SUFFIX} in {directory}: run prepare first")
    with ThreadPoolExecutor() as pool:
        return np.concatenate(list(pool.map(read_shard, paths)))
