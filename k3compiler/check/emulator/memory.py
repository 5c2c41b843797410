"""Global, flat, buffer and scratch memory instructions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from k3compiler.check.emulator.atomics import atomic32, atomic64
from k3compiler.check.emulator.fields import U32, U64, Array, Ints, bit, bits, signed
from k3compiler.check.emulator.machine import Machine, Override
from k3compiler.check.emulator.wave import Landing, Wave

# last words of a name -> (bytes, sign extended)
_SIZES = {
    "UBYTE": (1, False), "SBYTE": (1, True), "USHORT": (2, False), "SSHORT": (2, True), "DWORD": (4, False),
    "DWORDX2": (8, False), "DWORDX3": (12, False), "DWORDX4": (16, False), "BYTE": (1, False), "SHORT": (2, False),
}  # fmt: skip
_NO_OPERAND, _M0 = 0x7F, 124
_LDS_MASK = 0x3FFFF


def extended(value: Array, num_bytes: int) -> Array:
    """Sign extension of bytes or halves."""
    shift = 32 - 8 * num_bytes
    return ((value << U32(shift)).view(np.int32) >> shift).view(U32)


def merged_half(old: Array, value: Array, *, high: bool) -> Array:
    """16 bits put into one half of a register."""
    if high:
        return old & U32(0xFFFF) | value << U32(16)
    return old & U32(0xFFFF0000) | value & U32(0xFFFF)


@dataclass(frozen=True, slots=True)
class _Access:
    """What a memory instruction moves, from its name."""

    name: str
    kind: str
    num_bytes: int
    is_signed: bool
    d16: bool
    high: bool
    to_lds: bool
    atomic: tuple[str, ...]

    @staticmethod
    def of(name: str, *, to_lds: bool = False) -> _Access | None:
        _, kind, *rest = name.split("_")
        high, d16 = rest[-1:] == ["HI"], "D16" in rest
        if rest[:1] == ["LDS"]:
            rest, to_lds = rest[1:], True
        if kind == "ATOMIC":
            size = 8 if rest[-1] in ("X2", "F64") else 4
            return _Access(name, kind, size, False, False, False, False, tuple(rest))
        key = rest[0] if rest else ""
        if kind not in ("LOAD", "STORE") or (key not in _SIZES and not d16):
            return None
        size, is_signed = _SIZES.get(key, (2, False))
        return _Access(name, kind, size, is_signed and not d16, d16, high, to_lds, ())

    @property
    def num_registers(self) -> int:
        return max(1, self.num_bytes // 4)

    def finish(self, file: Array, register: int, lanes: Array, value: Array) -> None:
        """What a load leaves in the registers."""
        if self.is_signed:
            value = extended(value, self.num_bytes)
        if self.d16:
            value = merged_half(file[register, lanes], value, high=self.high)
        file[register : register + self.num_registers, lanes] = value

    def stored(self, file: Array, register: int, lanes: Array) -> Array:
        value = file[register : register + self.num_registers, lanes]
        return value >> U32(16) if self.high else value

    def land(self, machine: Machine, wave: Wave, lanes: Array, offset: int, value: Array) -> None:
        """A load that goes to LDS: lanes end to end from M0, later."""
        size = max(4, self.num_bytes)
        at = (int(wave.s[_M0]) & _LDS_MASK) + offset + lanes * size
        machine.land_later(wave, Landing(machine.lds_address(at, size, self.name), size, value))


def memory_instruction(machine: Machine, name: str, kind: str, raw: int) -> Override | None:
    """The override for a memory instruction, counted by ``s_waitcnt vmcnt``; None for one that is not done."""
    if name in ("BUFFER_WBL2", "BUFFER_INV", "BUFFER_WBINVL1", "BUFFER_WBINVL1_VOL"):
        return lambda wave: None
    made = _buffer(machine, name, raw) if kind == "MUBUF" else _flat(machine, name, kind, raw)
    if made is None:
        return None

    def run(wave: Wave) -> None:
        wave.in_flight.append(None)
        made(wave)

    return run


# -- global, flat, scratch ---------------------------------------------------------------------------
def _flat(machine: Machine, name: str, kind: str, raw: int) -> Override | None:
    access = _Access.of(name)
    if access is None:
        return None
    offset = signed(bits(raw, 12, 0), 13) if kind != "FLAT" else bits(raw, 11, 0)
    address_register, data, scalar = bits(raw, 39, 32), bits(raw, 47, 40), bits(raw, 54, 48)
    in_accumulation, destination = bit(raw, 55), bits(raw, 63, 56)
    if kind == "SCRATCH":
        return _scratch(machine, access, raw, offset)

    def places(wave: Wave, lanes: Array) -> Ints:
        if scalar != _NO_OPERAND and kind == "GLOBAL":
            base = int(wave.s[scalar]) | int(wave.s[scalar + 1]) << 32
            address = wave.v[address_register, lanes].astype(U64) + U64((base + offset) % 2**64)
        else:
            low, high = wave.v[address_register, lanes], wave.v[address_register + 1, lanes]
            address = (low.astype(U64) | high.astype(U64) << U64(32)) + U64(offset % 2**64)
        return machine.arena.offsets(address, access.num_bytes, name)

    def run(wave: Wave) -> None:
        lanes = wave.active()
        if not len(lanes):
            return
        at, file = places(wave, lanes), wave.a if in_accumulation else wave.v
        if access.atomic:
            _do_atomic(
                machine, access, file, at, lanes, data, destination if bit(raw, 16) else None
            )
        elif access.to_lds:
            access.land(machine, wave, lanes, offset, machine.arena.load(at, access.num_bytes))
        elif access.kind == "LOAD":
            access.finish(file, destination, lanes, machine.arena.load(at, access.num_bytes))
        else:
            machine.arena.store(at, access.num_bytes, access.stored(file, data, lanes))

    return run


def _scratch(machine: Machine, access: _Access, raw: int, offset: int) -> Override:
    address_register, data, scalar = bits(raw, 39, 32), bits(raw, 47, 40), bits(raw, 54, 48)
    in_accumulation, destination, uses_vector = bit(raw, 55), bits(raw, 63, 56), bit(raw, 13)
    size = access.num_bytes

    def places(wave: Wave, lanes: Array) -> Ints:
        at = np.full(len(lanes), offset, np.int64)
        if uses_vector:
            at = at + wave.v[address_register, lanes].astype(np.int64)
        if scalar != _NO_OPERAND:
            at = at + int(wave.s[scalar])
        if at.size and (at.min() < 0 or int(at.max()) + size > machine.scratch_bytes):
            raise MemoryError(
                f"{access.name}: scratch offset {int(at.max())} > {machine.scratch_bytes}"
            )
        return at[None, :] + np.arange(size)[:, None]

    def run(wave: Wave) -> None:
        lanes, file = wave.active(), wave.a if in_accumulation else wave.v
        at = places(wave, lanes)
        if access.kind == "LOAD":
            each = wave.scratch[at, lanes[None, :]]
            padded = np.zeros((4 * access.num_registers, len(lanes)), np.uint8)
            padded[:size] = each
            words = np.ascontiguousarray(
                padded.reshape(access.num_registers, 4, -1).transpose(0, 2, 1)
            )
            access.finish(file, destination, lanes, words.view(U32)[:, :, 0])
        else:
            value = access.stored(file, data, lanes)
            for index in range(size):
                wave.scratch[at[index], lanes] = (value[index // 4] >> U32(8 * (index % 4))).astype(
                    np.uint8
                )

    return run


# -- buffers -----------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class _BufferAddress:
    """Where a buffer instruction reaches: resource, lane offset, uniform offset."""

    raw: int

    def of(self, wave: Wave, lanes: Array, num_bytes: int) -> tuple[Array, Array]:
        """(addresses of the lanes in bounds, which lanes those are)."""
        raw, resource = self.raw, bits(self.raw, 52, 48) * 4
        base = int(wave.s[resource]) | (int(wave.s[resource + 1]) & 0xFFFF) << 32
        stride, records = int(wave.s[resource + 1]) >> 16 & 0x3FFF, int(wave.s[resource + 2])
        vector, by_index = bits(raw, 39, 32), bit(raw, 13)
        offset = np.full(len(lanes), bits(raw, 11, 0), np.int64)
        if by_index:
            offset = offset + wave.v[vector, lanes].astype(np.int64) * stride
        if bit(raw, 12):
            offset = offset + wave.v[vector + by_index, lanes].astype(np.int64)
        inside = (offset >= 0) & (offset + num_bytes <= records)
        uniform = int(wave.s[bits(raw, 63, 56)])
        return (base + uniform + offset[inside]).astype(U64), inside


def _buffer(machine: Machine, name: str, raw: int) -> Override | None:
    access = _Access.of(name, to_lds=bool(bit(raw, 16)))
    if access is None:
        return None
    address, register, in_accumulation = _BufferAddress(raw), bits(raw, 47, 40), bit(raw, 55)
    size, arena = access.num_bytes, machine.arena

    def run(wave: Wave) -> None:
        lanes, file = wave.active(), wave.a if in_accumulation else wave.v
        if not len(lanes):
            return
        reached, inside = address.of(wave, lanes, size)
        at = arena.offsets(reached, size, name)
        if access.atomic:
            returned = register if bit(raw, 14) else None
            _do_atomic(machine, access, file, at, lanes[inside], register, returned)
        elif access.kind == "STORE":
            arena.store(at, size, access.stored(file, register, lanes[inside]))
        else:
            value = np.zeros((access.num_registers, len(lanes)), U32)
            if inside.any():
                value[:, inside] = arena.load(at, size)
            if access.to_lds:
                access.land(machine, wave, lanes, bits(raw, 11, 0), value)
            else:
                access.finish(file, register, lanes, value)

    return run


# -- atomics -----------------------------------------------------------------------------------------
def _do_atomic(
    machine: Machine,
    access: _Access,
    file: Array,
    at: Ints,
    lanes: Array,
    data: int,
    returned: int | None,
) -> None:
    """Lane after lane."""
    parts = [*access.atomic, "", ""]
    key, kind = (parts[1], "PK" + parts[2]) if parts[0] == "PK" else (parts[0], parts[1])
    change: Callable[..., int] = atomic64 if access.num_bytes == 8 else atomic32
    words = access.num_bytes // 4

    def read(register: int, lane: int) -> int:
        return sum(int(file[register + i, lane]) << 32 * i for i in range(words))

    for lane, offset in zip(lanes, at >> 2, strict=True):
        cell = machine.arena.words[offset : offset + words]
        old = sum(int(cell[i]) << 32 * i for i in range(words))
        other = read(data + words, lane) if key == "CMPSWAP" else 0
        new = change(key, kind, old, read(data, lane), other)
        for i in range(words):
            cell[i] = new >> 32 * i & 0xFFFFFFFF
            if returned is not None:
                file[returned + i, lane] = old >> 32 * i & 0xFFFFFFFF
