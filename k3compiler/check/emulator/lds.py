"""LDS instructions: reads and writes, transposed reads, lane permutes, atomics."""

from __future__ import annotations

import re

import numpy as np

from k3compiler.check.emulator.atomics import atomic32
from k3compiler.check.emulator.fields import LANES, NUM_LANES, U32, Array, bit, bits
from k3compiler.check.emulator.machine import Machine, Override
from k3compiler.check.emulator.memory import extended, merged_half
from k3compiler.check.emulator.wave import Wave

_TRANSPOSED = re.compile(r"DS_READ_B(64|96)_TR_B(16|8|4)")
_PAIR = re.compile(r"DS_(READ|WRITE)2(ST64)?_B(32|64)")
_PLAIN = re.compile(r"DS_(READ|WRITE)_(B32|B64|B96|B128|U8|I8|U16|I16|B8|B16)(_D16)?(_HI)?")
_ATOMIC = re.compile(r"DS_(ADD|SUB|MIN|MAX|AND|OR|XOR|WRXCHG|CMPST)(_RTN)?_(U32|I32|B32|F32)")


class _Fields:
    """Operands of a DS instruction."""

    def __init__(self, raw: int) -> None:
        self.offset0, self.offset1 = bits(raw, 7, 0), bits(raw, 15, 8)
        self.offset = self.offset0 | self.offset1 << 8
        self.address, self.data0, self.data1 = (
            bits(raw, 39, 32),
            bits(raw, 47, 40),
            bits(raw, 55, 48),
        )
        self.destination, self.in_accumulation = bits(raw, 63, 56), bit(raw, 25)

    def file(self, wave: Wave) -> Array:
        return wave.a if self.in_accumulation else wave.v


def lds_instruction(machine: Machine, name: str, raw: int) -> Override | None:
    """The override for a DS instruction; None for one that is not done."""
    fields = _Fields(raw)
    if name in ("DS_BPERMUTE_B32", "DS_PERMUTE_B32"):
        return _permute(fields, backward="BPERMUTE" in name)
    if name == "DS_SWIZZLE_B32":
        return _swizzle(fields)
    if found := _TRANSPOSED.fullmatch(name):
        return _transposed(machine, fields, name, int(found[1]) // 8, int(found[2]))
    if found := _PAIR.fullmatch(name):
        size = int(found[3]) // 8
        return _pair(machine, fields, name, size, size * (64 if found[2] else 1))
    if found := _PLAIN.fullmatch(name):
        return _plain(machine, fields, name, found[2], d16=bool(found[3]), high=bool(found[4]))
    if found := _ATOMIC.fullmatch(name):
        return _atomic(machine, fields, name, found[1], found[3], returns=bool(found[2]))
    return None


def _permute(fields: _Fields, *, backward: bool) -> Override:
    def run(wave: Wave) -> None:
        lanes, file = wave.active(), fields.file(wave)
        other = ((wave.v[fields.address] + U32(fields.offset)) >> U32(2) & U32(63)).astype(np.int64)
        source = file[fields.data0].copy()
        if backward:
            source[~wave.is_active()] = 0
            file[fields.destination, lanes] = source[other[lanes]]
        else:
            pushed = np.zeros(NUM_LANES, U32)
            pushed[other[lanes]] = source[lanes]
            file[fields.destination, lanes] = pushed[lanes]

    return run


def _swizzle(fields: _Fields) -> Override:
    code = fields.offset
    if code >> 15:
        other = (LANES & ~3) | np.array([code >> (2 * i) & 3 for i in range(4)])[LANES & 3]
    else:
        other = (LANES & 32) | (
            (((LANES & 31) & (code & 31)) | (code >> 5 & 31)) ^ (code >> 10 & 31)
        )

    def run(wave: Wave) -> None:
        lanes, file = wave.active(), fields.file(wave)
        source = file[fields.data0].copy()
        source[~wave.is_active()] = 0
        file[fields.destination, lanes] = source[other[lanes]]

    return run


def _transposed(machine: Machine, fields: _Fields, name: str, size: int, width: int) -> Override:
    """16 lanes hold rows of 16 elements; lane l gets column l."""
    per_lane = size * 8 // width
    element, lane = np.arange(per_lane), LANES % 16
    lanes_a_row = 16 // per_lane if per_lane < 16 else 1
    from_lane = (
        (LANES - lane)[:, None] + element[None, :] * lanes_a_row + (lane // per_lane)[:, None]
    )
    from_element = np.broadcast_to((lane % per_lane)[:, None], from_lane.shape)

    def run(wave: Wave) -> None:
        if len(wave.active()) != NUM_LANES:
            raise RuntimeError(f"{name} with lanes switched off")
        address = (wave.v[fields.address] + U32(fields.offset)).astype(np.int64)
        words = machine.lds_load(machine.lds_address(address, size, name), size)
        rows = np.ascontiguousarray(words.T)
        if width == 4:
            pairs = rows.view(np.uint8)
            nibbles = np.stack([pairs & 15, pairs >> 4], -1).reshape(NUM_LANES, per_lane)
            column = nibbles[from_lane, from_element]
            made = column[:, 0::2] | column[:, 1::2] << 4
        else:
            made = rows.view(np.uint16 if width == 16 else np.uint8)[from_lane, from_element]
        result = np.ascontiguousarray(made).view(U32)
        fields.file(wave)[fields.destination : fields.destination + size // 4] = result.T

    return run


def _pair(machine: Machine, fields: _Fields, name: str, size: int, unit: int) -> Override:
    """Two places at once, with an offset each."""
    count = size // 4
    places = ((fields.offset0, fields.data0, 0), (fields.offset1, fields.data1, count))

    def run(wave: Wave) -> None:
        lanes, file = wave.active(), fields.file(wave)
        base = wave.v[fields.address, lanes].astype(np.int64)
        at = [machine.lds_address(base + offset * unit, size, name) for offset, _, _ in places]
        if "READ" in name:
            values = [machine.lds_load(a, size) for a in at]
            for value, (_, _, part) in zip(values, places, strict=True):
                first = fields.destination + part
                file[first : first + count, lanes] = value
        else:
            for address, (_, data, _) in zip(at, places, strict=True):
                machine.lds_store(address, size, file[data : data + count, lanes])

    return run


def _plain(
    machine: Machine, fields: _Fields, name: str, kind: str, *, d16: bool, high: bool
) -> Override:
    size = int(kind[1:]) // 8
    count = max(1, size // 4)

    def address(wave: Wave) -> Array:
        at = (wave.v[fields.address, wave.active()] + U32(fields.offset)).astype(np.int64)
        return machine.lds_address(at, size, name)

    def read(wave: Wave) -> None:
        lanes, file = wave.active(), fields.file(wave)
        value = machine.lds_load(address(wave), size)
        if kind[0] == "I":
            value = extended(value, size)
        if d16:
            value = merged_half(file[fields.destination, lanes], value, high=high)
        file[fields.destination : fields.destination + count, lanes] = value

    def write(wave: Wave) -> None:
        value = fields.file(wave)[fields.data0 : fields.data0 + count, wave.active()]
        machine.lds_store(address(wave), size, value >> U32(16) if high else value)

    return read if name.startswith("DS_READ") else write


def _atomic(
    machine: Machine, fields: _Fields, name: str, key: str, kind: str, *, returns: bool
) -> Override:
    def run(wave: Wave) -> None:
        lanes = wave.active()
        address = machine.lds_address(
            wave.v[fields.address, lanes].astype(np.int64) + fields.offset, 4, name
        )
        for lane, at in zip(lanes, address >> 2, strict=True):
            old, value = int(machine.lds[at]), int(wave.v[fields.data0, lane])
            machine.lds[at] = atomic32(key, kind, old, value, int(wave.v[fields.data1, lane]))
            if returns:
                wave.v[fields.destination, lane] = old

    return run
