"""A step's inputs in one block of device memory: what the host gives first, then what the plan derives.

The host's part is packed into staging memory and copied without waiting; the rest is written by the
plan's first launch, and keeps its contents from step to step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from k3compiler.dtypes import itemsize
from k3compiler.package.expr import Expr, compile_exprs
from k3compiler.package.step_inputs import INPUT_SHAPES
from k3compiler.runtime.device.base import Buffer, Device

_ALIGN_BYTES = 64


class InputArena:
    """Room for inputs, each at a fixed offset until a larger step comes.

    Ownership: the block belongs to the arena; addresses and the derived inputs' contents hold until
    :meth:`reserve` returns True.

    Args:
        given: inputs that the host writes. derived: those that the plan writes.
    """

    def __init__(self, device: Device, given: Sequence[str], derived: Sequence[str]) -> None:
        self._device, self.given, self.names = device, tuple(given), (*given, *derived)
        counts = [_count_expr(INPUT_SHAPES[name][1]) for name in self.names]
        self._count = compile_exprs(counts)
        self._room = np.full(len(self.names), -1, np.int64)
        self._offsets: dict[str, int] = {}
        self.buffer: Buffer = device.allocate(1)
        self._staging = device.staging(self.buffer, 0)
        self._sent: NDArray[Any] | None = None

    def reserve(self, symbols: Mapping[str, int]) -> bool:
        """Make room for a step of these sizes; True where addresses changed."""
        need = np.array(self._count(symbols), np.int64)
        if not (need > self._room).any():
            return False
        self._room = np.maximum(self._room, need)
        items = [itemsize(INPUT_SHAPES[name][0]) for name in self.names]
        ends = np.cumsum(-(-self._room * items // _ALIGN_BYTES) * _ALIGN_BYTES)
        self._offsets = dict(zip(self.names, [0, *ends[:-1].tolist()], strict=True))
        self.buffer = self._device.allocate(int(ends[-1]))
        num_given = int(ends[len(self.given) - 1]) if self.given else 0
        self._staging, self._sent = self._device.staging(self.buffer, num_given), None
        return True

    def offset(self, name: str) -> int:
        """Bytes from the start of the buffer to an input."""
        return self._offsets[name]

    def pointer(self, name: str) -> int:
        """The device address of an input."""
        return self.buffer.pointer + self._offsets[name]

    def write(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Send a step's arrays to the device; a lone one only where it says something new."""
        if not self.given:
            return
        is_lone = len(self.given) == 1
        if is_lone and self._sent is not None and np.array_equal(self._sent, arrays[self.given[0]]):
            return
        room, end = self._staging.room(), 0
        for name in self.given:
            flat = np.ascontiguousarray(arrays[name]).reshape(-1).view(np.uint8)
            begin = self._offsets[name]
            end = begin + len(flat)
            room[begin:end] = flat
        self._staging.send(end)
        self._sent = arrays[self.given[0]] if is_lone else None


def _count_expr(shape: tuple[Expr, ...]) -> Expr:
    if all(isinstance(extent, int) for extent in shape):
        return prod(int(extent) for extent in shape)
    return "*".join(f"({extent})" for extent in shape)
