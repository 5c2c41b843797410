"""What the waves of a workgroup share: global memory, LDS, and the arithmetic emulator."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from k3compiler.check.emulator.arena import Arena
from k3compiler.check.emulator.fields import U32, Array, Ints, Words, aligned, gather, scatter
from k3compiler.check.emulator.wave import Landing, Wave

Override = Callable[[Wave], None]
GFX942, GFX950 = 0x4C, 0x4F
_S_NOP = 0xBF800000
_MAX_PATCHES = 4000


@dataclass(frozen=True, slots=True)
class Native:
    """A compiled instruction of the arithmetic emulator at an address of its own."""

    call: Callable[..., Any]
    operands: tuple[int, ...]
    address: int

    def __call__(self, wave: Wave) -> None:
        """Runs it once; the program counter is kept."""
        counter = wave.counter[0]
        wave.counter[0] = self.address
        self.call(*[wave.pointers[i] for i in self.operands])
        wave.counter[0] = counter


class Machine:
    """Memory of one workgroup after another on one code object."""

    def __init__(
        self, arena: Arena, *, alu: Any, flag: int, lds_bytes: int, scratch_bytes: int
    ) -> None:
        self.arena, self.alu, self.flag = arena, alu, flag
        self.lds_bytes, self.scratch_bytes = lds_bytes, scratch_bytes
        self.lds: Words = aligned(max(lds_bytes, 4) // 4 + 64, U32)
        self._lds_bytes_view = self.lds.view(np.uint8)
        self._patches, self._num_patches = arena.allocate(16 * _MAX_PATCHES), 0

    def clear_lds(self) -> None:
        """LDS of a new workgroup: NaN."""
        self.lds[:] = 0xFFFFFFFF

    # -- LDS -------------------------------------------------------------------------------------
    def lds_address(self, address: Ints, num_bytes: int, what: str) -> Ints:
        """The address itself.

        Raises:
            MemoryError: a lane is outside the workgroup's LDS.
        """
        if address.size and int(address.max()) + num_bytes > self.lds_bytes:
            raise MemoryError(
                f"{what}: LDS address {int(address.max())}+{num_bytes} > {self.lds_bytes}"
            )
        return address

    def lds_load(self, address: Ints, num_bytes: int) -> Words:
        return gather(self.lds, self._lds_bytes_view, address, num_bytes)

    def lds_store(self, address: Ints, num_bytes: int, value: Array) -> None:
        scatter(self.lds, self._lds_bytes_view, address, num_bytes, value)

    def land_later(self, wave: Wave, landing: Landing) -> None:
        """The load under way lands where an ``s_waitcnt vmcnt`` of the wave covers it."""
        wave.in_flight[-1] = landing

    def wait(self, wave: Wave, most_in_flight: int) -> None:
        """``s_waitcnt vmcnt``: all but the newest loads have landed."""
        count = max(0, len(wave.in_flight) - most_in_flight)
        for landing in wave.in_flight[:count]:
            if landing is not None:
                self.lds_store(landing.address, landing.num_bytes, landing.value)
        del wave.in_flight[:count]

    # -- instructions of the arithmetic emulator --------------------------------------------------
    def patched(self, *words: int) -> Native:
        """An instruction of our own, alone in memory."""
        at = self._patches + 16 * self._num_patches
        self._num_patches += 1
        assert self._num_patches < _MAX_PATCHES, "too many rewritten instructions"
        padded = [*words, *[_S_NOP] * (4 - len(words))]
        self.arena.put(at, struct.pack("<4I", *padded))
        return self.native(self.arena.base + at)

    def native(self, address: int) -> Native:
        """The instruction at an address, compiled."""
        (program, runtime), _ = self.alu._decode_at(address, "cdna")
        return Native(runtime.fxn, tuple(program.arg.globals), address)
