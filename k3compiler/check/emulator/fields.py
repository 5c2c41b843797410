"""Bit fields of instruction words."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint32]
Ints = NDArray[np.int64]
Array = NDArray[Any]

U32, U64, F32 = np.uint32, np.uint64, np.float32
NUM_LANES = 64
LANES = np.arange(NUM_LANES)


def bits(word: int, high: int, low: int) -> int:
    """Bits ``high`` to ``low`` of a word, both included."""
    return word >> low & ((1 << (high - low + 1)) - 1)


def bit(word: int, position: int) -> int:
    return word >> position & 1


def signed(value: int, width: int) -> int:
    """A ``width``-bit field as two's complement."""
    return value - (1 << width) if value >> (width - 1) & 1 else value


def aligned(shape: int | tuple[int, ...], dtype: Any) -> Array:
    """Zeros that start on a page: the emulator's compiled code uses aligned vector loads."""
    size = np.dtype(dtype).itemsize * int(np.prod(shape))
    raw = np.zeros(size + 4096, np.uint8)
    start = -raw.ctypes.data % 4096
    return raw[start : start + size].view(dtype).reshape(shape)


def gather(memory: Words, as_bytes: Array, address: Array, size: int) -> Words:
    """``size`` bytes at every address, as rows of words ``[max(1, size/4), lanes]``."""
    if size % 4 == 0 and not (address & 3).any():
        return memory[(address >> 2)[None, :] + np.arange(size // 4)[:, None]]
    each = as_bytes[address[None, :] + np.arange(size)[:, None]].astype(U32)
    rows: list[Array] = []
    for first in range(0, size, 4):
        row = each[first]
        for index in range(1, min(4, size - first)):
            row = row | each[first + index] << U32(8 * index)
        rows.append(row)
    return np.stack(rows).astype(U32)


def scatter(memory: Words, as_bytes: Array, address: Array, size: int, value: Array) -> None:
    """The reverse of :func:`gather`; later lanes win."""
    if size % 4 == 0 and not (address & 3).any():
        memory[(address >> 2)[None, :] + np.arange(size // 4)[:, None]] = value
        return
    for index in range(size):
        part = value[index // 4] >> U32(8 * (index % 4))
        as_bytes[address + index] = part.astype(np.uint8)
