"""Global memory: real addresses, every access checked against the allocations."""

from __future__ import annotations

import mmap

import numpy as np

from k3compiler.check.emulator.fields import U32, U64, Array, Ints, Words, gather, scatter

_GAP_BYTES = 4096  # unowned memory between two allocations


class Arena:
    """One mapping that holds the code object, the kernel's arguments and every buffer."""

    def __init__(self, num_bytes: int) -> None:
        self.size = (num_bytes + 65535) & ~65535
        self._map = mmap.mmap(-1, self.size)
        self.bytes = np.frombuffer(self._map, np.uint8)
        self.words = self.bytes.view(U32)
        self.base = self.bytes.ctypes.data
        self._top = _GAP_BYTES
        self._owned = np.zeros(self.size, np.bool_)

    def allocate(self, num_bytes: int, align: int = 256) -> int:
        """Offset of fresh memory."""
        start = -(-self._top // align) * align
        self._top = start + num_bytes + _GAP_BYTES
        assert self._top <= self.size, "the arena is full"
        self._owned[start : start + num_bytes] = True
        return start

    def put(self, offset: int, data: bytes) -> None:
        self.bytes[offset : offset + len(data)] = np.frombuffer(data, np.uint8)

    def offsets(self, address: Array, num_bytes: int, what: str) -> Ints:
        """Offsets of addresses (u64).

        Raises:
            MemoryError: some lane reaches outside every allocation.
        """
        offset = address - U64(self.base)
        if not offset.size:
            return offset.astype(np.int64)
        bad = offset > U64(self.size - num_bytes)
        if not bad.any():
            bad = ~(self._owned[offset] & self._owned[offset + U64(num_bytes - 1)])
        if bad.any():
            first = int(address[bad][0])
            raise MemoryError(
                f"{what}: {int(bad.sum())} lanes outside every buffer, first address {first:#x}"
            )
        return offset.astype(np.int64)

    def load(self, offset: Ints, num_bytes: int) -> Words:
        return gather(self.words, self.bytes, offset, num_bytes)

    def store(self, offset: Ints, num_bytes: int, value: Array) -> None:
        scatter(self.words, self.bytes, offset, num_bytes, value)
