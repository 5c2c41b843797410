"""Token arrays as compressed shards."""

from __future__ import annotations

import lzma
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

SHARD_SUFFIX = ".u16.xz"


def write_shard(path: Path, tokens: NDArray[np.uint16]) -> None:
    """One compressed shard (low bytes, then high bytes: they compress better apart)."""
    planes = tokens.view(np.uint8).reshape(-1, 2).T
    path.write_bytes(lzma.compress(np.ascontiguousarray(planes).tobytes(), preset=6))


def read_shard(path: Path) -> NDArray[np.uint16]:
    """The inverse of :func:`write_shard`."""
    planes = np.frombuffer(lzma.decompress(path.read_bytes()), np.uint8).reshape(2, -1)
    return np.ascontiguousarray(planes.T).view(np.uint16).reshape(-1)


def read_shards(directory: Path, stem: str) -> NDArray[np.uint16]:
    """All shards ``stem-*.u16.xz`` in order of name."""
    paths = sorted(directory.glob(f"{stem}-*{SHARD_SUFFIX}"))
    if not paths:
        raise FileNotFoundError(f"no {stem}-*{SHARD_SUFFIX} in {directory}: run prepare first")
    with ThreadPoolExecutor() as pool:
        return np.concatenate(list(pool.map(read_shard, paths)))
