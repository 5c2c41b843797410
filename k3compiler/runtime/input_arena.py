"""A step's inputs in one block of device memory: packed on the host, copied once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from k3compiler.dtypes import itemsize, numpy_dtype
from k3compiler.package.expr import Expr, compile_exprs
from k3compiler.package.step_inputs import INPUT_SHAPES
from k3compiler.runtime.device.base import Buffer, Device

_ALIGN_BYTES = 64


class InputArena:
    """Room for the inputs ``names``, each at a fixed offset until a larger step comes.

    Ownership: the block belongs to the arena; addresses hold until :meth:`reserve` returns True.
    """

    def __init__(self, device: Device, names: Sequence[str]) -> None:
        self._device, self.names = device, tuple(names)
        counts = [_count_expr(INPUT_SHAPES[name][1]) for name in names]
        self._count = compile_exprs(counts)
        self._room = np.full(len(names), -1, np.int64)
        self._views: dict[str, NDArray[Any]] = {}
        self._offsets: dict[str, int] = {}
        self._host = np.zeros(1, np.uint8)
        self._buffer: Buffer = device.allocate(1)

    def reserve(self, symbols: Mapping[str, int]) -> bool:
        """Make room for a step of these sizes; True where addresses changed."""
        need = np.array(self._count(symbols), np.int64)
        if not (need > self._room).any():
            return False
        self._room = np.maximum(self._room, need)
        sizes = [
            itemsize(INPUT_SHAPES[n][0]) * int(r)
            for n, r in zip(self.names, self._room, strict=True)
        ]
        ends = np.cumsum([-(-size // _ALIGN_BYTES) * _ALIGN_BYTES for size in sizes])
        self._host = np.zeros(int(ends[-1]), np.uint8)
        starts = [0, *ends[:-1].tolist()]
        for name, start, size in zip(self.names, starts, sizes, strict=True):
            dtype = numpy_dtype(INPUT_SHAPES[name][0])
            self._views[name] = self._host[start : start + size].view(dtype)
            self._offsets[name] = start
        self._buffer = self._device.allocate(len(self._host))
        return True

    def pointer(self, name: str) -> int:
        """The device address of an input."""
        return self._buffer.pointer + self._offsets[name]

    def write(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Copy a step's arrays to the device."""
        for name, view in self._views.items():
            flat = arrays[name].reshape(-1)
            view[: len(flat)] = flat
        if self._views:
            self._device.upload(self._buffer, self._host)


def _count_expr(shape: tuple[Expr, ...]) -> Expr:
    if all(isinstance(extent, int) for extent in shape):
        return prod(int(extent) for extent in shape)
    return "*".join(f"({extent})" for extent in shape)
