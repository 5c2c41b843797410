"""Arrays that end where an unreadable page starts."""

from __future__ import annotations

import ctypes
import mmap
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


def guarded(array: Array, mappings: list[mmap.mmap]) -> Array:
    """A copy of ``array`` that ends where an unreadable page starts."""
    size = max(array.nbytes, 1)
    whole = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
    mapping = mmap.mmap(-1, whole + 2 * mmap.PAGESIZE)
    mappings.append(mapping)
    mapping.write(b"\xa5" * len(mapping))
    start = np.frombuffer(mapping, np.uint8).ctypes.data
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    for page in (start, start + mmap.PAGESIZE + whole):
        assert protect(page, mmap.PAGESIZE, 0) == 0
    first = mmap.PAGESIZE + whole - array.nbytes
    view = (
        np.frombuffer(mapping, np.uint8, array.nbytes, first).view(array.dtype).reshape(array.shape)
    )
    view[...] = array
    return view


def unguard(mappings: list[mmap.mmap]) -> None:
    protect = ctypes.CDLL(None).mprotect
    protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    for mapping in mappings:
        start = np.frombuffer(mapping, np.uint8).ctypes.data
        protect(start, len(mapping), 3)
