"""One wave: registers, program counter, and the copies that it still waits for."""

from __future__ import annotations

import ctypes
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np

from k3compiler.check.emulator.fields import LANES, NUM_LANES, U32, U64, Array, Ints, Words, aligned

_CONSTANT_FLOATS = (0.5, -0.5, 1.0, -1.0, 2.0, -2.0, 4.0, -4.0, 0.15915494)  # s240 to s248
_ALL = (1 << NUM_LANES) - 1


@dataclass(frozen=True, slots=True)
class Landing:
    """An LDS-direct load under way: where and what it writes when it lands."""

    address: Ints
    num_bytes: int
    value: Words


class Wave:
    """64 lanes. ``v`` are vector registers ``[256, 64]``, ``a`` accumulation registers, ``s`` scalars and constants."""

    def __init__(self, num_lanes: int, start: int) -> None:
        self.v: Words = aligned((256, NUM_LANES), U32)
        self.a: Words = aligned((256, NUM_LANES), U32)
        self.s: Words = aligned(512, U32)
        self.s[128:193] = np.arange(65)
        self.s[193:209] = (-np.arange(1, 17)).astype(np.int64).astype(U32)
        floats = b"".join(struct.pack("<f", x) for x in _CONSTANT_FLOATS)
        self.s[240:249] = np.frombuffer(floats, U32)
        enabled = (1 << num_lanes) - 1
        self.s[126], self.s[127] = enabled & 0xFFFFFFFF, enabled >> 32
        place: Any = self.s.view(U64)[128:129]  # s256: where the compiled code keeps it
        self.counter = memoryview(place).cast("B").cast("Q")
        self.counter[0] = start
        self._exec = self.s.view(U64)[63:64]
        self._known: tuple[int, Array] = (_ALL, LANES)
        self.pointers: list[ctypes.c_uint64] = []
        self.argument_lists: dict[tuple[int, ...], list[ctypes.c_uint64]] = {}
        self.in_flight: list[Landing | None] = []
        self.scratch: Array = np.zeros((0, NUM_LANES), np.uint8)
        self.num_executed = 0
        self.is_done = self.at_barrier = self.saturates = False

    @property
    def exec(self) -> int:
        return int(self._exec[0])

    @exec.setter
    def exec(self, mask: int) -> None:
        self._exec[0] = mask

    def active(self) -> Array:
        """Indices of the active lanes."""
        mask = self.exec
        if mask != self._known[0]:
            lanes = np.nonzero((U64(mask) >> LANES.astype(U64)) & U64(1))[0]
            self._known = (mask, LANES if mask == _ALL else lanes)
        return self._known[1]

    def is_active(self) -> Array:
        """One boolean a lane."""
        mask = np.zeros(NUM_LANES, bool)
        mask[self.active()] = True
        return mask

    def source(self, operand: int) -> Words:
        """A 32-bit source operand for all lanes."""
        return self.v[operand - 256] if operand >= 256 else np.full(NUM_LANES, self.s[operand], U32)

    def write(self, register: int, value: Array) -> None:
        """A vector register in the active lanes."""
        lanes = self.active()
        self.v[register, lanes] = value[lanes]

    def write_half(self, register: int, value: Array, high: int) -> None:
        """The high or low half of a vector register in the active lanes."""
        lanes = self.active()
        old = self.v[register, lanes]
        if high:
            self.v[register, lanes] = old & U32(0xFFFF) | value[lanes] << U32(16)
        else:
            self.v[register, lanes] = old & U32(0xFFFF0000) | value[lanes] & U32(0xFFFF)
