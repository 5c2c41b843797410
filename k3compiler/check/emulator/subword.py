"""Vector instructions with lane or sub-word selection: DPP, SDWA, and 16-bit forms on high registers.

The arithmetic emulator runs the plain form of the instruction, rewritten onto spare registers that are restored.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from k3compiler.check.emulator.fields import LANES, NUM_LANES, U32, U64, Array, bit, bits
from k3compiler.check.emulator.machine import Machine, Override
from k3compiler.check.emulator.wave import Wave

_VCC = 106
_SIXTEEN_BIT = re.compile(r"(F16|U16|I16|B16)")
_OPERAND_FIELDS = {"src0": (0x1FF, 0), "src1": (0xFF, 9), "dst": (0xFF, 17)}


def _retarget(word: int, **registers: int | None) -> int:
    """The instruction word with other vector registers as operands."""
    for name, register in registers.items():
        if register is not None:
            mask, shift = _OPERAND_FIELDS[name]
            value = register + 256 if name == "src0" else register
            word = word & ~(mask << shift) | value << shift
    return word & 0xFFFFFFFF


def _spare(*used: int | None) -> list[int]:
    return [r for r in range(127, 110, -1) if r not in used]


@dataclass(frozen=True, slots=True)
class _Modifiers:
    """Negation and absolute value of one float operand."""

    negate: int
    absolute: int
    sign: np.uint32

    def apply(self, word: Array) -> Array:
        if self.absolute:
            word = word & ~self.sign
        return word ^ self.sign if self.negate else word


def _sign(name: str) -> np.uint32:
    return U32(0x8000 if "F16" in name else 0x80000000)


def _dpp_sources(name: str, control: int) -> tuple[Array, Array]:
    """(lane that each lane reads, whether there is one)."""
    lane, in_row, every = LANES, LANES % 16, np.ones(NUM_LANES, bool)
    row, low = lane - in_row, control & 15
    by_amount = {
        0x10: (lane + low, in_row + low < 16),
        0x11: (lane - low, in_row >= low),
        0x12: (row + (in_row - low) % 16, every),
        0x15: (row + low, every),
    }
    fixed = {
        0x130: (lane + 1, lane < 63),
        0x134: ((lane + 1) % 64, every),
        0x138: (lane - 1, lane > 0),
        0x13C: ((lane - 1) % 64, every),
        0x140: (row + 15 - in_row, every),
        0x141: ((lane & ~7) + 7 - lane % 8, every),
        0x142: (row - 1, lane >= 16),
        0x143: (np.full(NUM_LANES, 31), lane >= 32),
    }
    if control < 0x100:
        return (lane & ~3) + np.array([control >> (2 * i) & 3 for i in range(4)])[lane & 3], every
    found = fixed.get(control) or by_amount.get(control >> 4)
    if found is None:
        raise NotImplementedError(f"{name}: DPP control {control:#x}")
    return found


def dpp(machine: Machine, name: str, kind: str, raw: int) -> Override:
    """Data-parallel primitives: source 0 comes from other lanes."""
    source, valid = _dpp_sources(name, bits(raw, 48, 40))
    source = np.where(valid, source, 0)
    rows, banks = bits(raw, 63, 60), bits(raw, 59, 56)
    enabled = (rows >> (LANES // 16) & 1).astype(bool) & (banks >> (LANES % 16 // 4) & 1).astype(
        bool
    )
    zero_outside = bit(raw, 51)
    register, destination = bits(raw, 39, 32), bits(raw, 24, 17)
    first = _Modifiers(bit(raw, 52), bit(raw, 53), _sign(name))

    def fetch(wave: Wave) -> tuple[Array, Array]:
        active = wave.is_active()
        there = valid & active[source]
        value = np.where(there, wave.v[register][source], U32(0)).astype(U32)
        return first.apply(value), enabled & active & (zero_outside != 0 or there)

    if name.startswith("V_MOV_B32"):

        def move(wave: Wave) -> None:
            value, written = fetch(wave)
            wave.v[destination, written] = value[written]

        return move
    second = None if kind.startswith("VOP1") else bits(raw, 16, 9)
    modifiers = _Modifiers(bit(raw, 54), bit(raw, 55), _sign(name))
    changes_second = second is not None and (modifiers.negate or modifiers.absolute)
    t0, t1 = _spare(destination, second)[:2]
    plain = machine.patched(
        _retarget(raw & 0xFFFFFFFF, src0=t0, src1=t1 if changes_second else None)
    )

    def run(wave: Wave) -> None:
        value, written = fetch(wave)
        kept, mask = wave.v[[t0, t1]].copy(), wave.exec
        if changes_second and second is not None:
            wave.v[t1] = modifiers.apply(wave.v[second])
        wave.v[t0] = value
        wave.exec = int((written.astype(U64) << LANES.astype(U64)).sum(dtype=U64))
        plain(wave)
        wave.v[[t0, t1]], wave.exec = kept, mask

    return run


def high_registers(machine: Machine, name: str, kind: str, raw: int) -> Override | None:
    """Plain 16-bit instructions on v128 and up, which the arithmetic emulator reads as high halves: moved down."""
    if kind not in ("VOP1", "VOP2", "VOPC") or not _SIXTEEN_BIT.search(name):
        return None
    src0 = bits(raw, 8, 0) - 256
    src1 = bits(raw, 16, 9) if kind != "VOP1" else -1
    dst = bits(raw, 24, 17) if kind != "VOPC" else -1
    high = {n: r for n, r in (("src0", src0), ("src1", src1), ("dst", dst)) if r >= 128}
    if not high:
        return None
    spare = dict(zip(high, _spare(src0, src1, dst), strict=False))
    reads = [n for n in high if n != "dst"]
    to, of = [spare[n] for n in reads], [high[n] for n in reads]
    plain = machine.patched(_retarget(raw & 0xFFFFFFFF, **spare))

    def run(wave: Wave) -> None:
        kept = wave.v[to].copy()
        wave.v[to] = wave.v[of]
        plain(wave)
        if "dst" in high:
            wave.v[dst] = wave.v[spare["dst"]]
        wave.v[to] = kept

    return run


@dataclass(frozen=True, slots=True)
class _SubWord:
    """One SDWA source: which byte or half of which register, sign extended or not, with modifiers."""

    register: int
    is_scalar: int
    select: int
    extend: int
    modifiers: _Modifiers

    @staticmethod
    def of(raw: int, name: str, register: int, low: int, scalar: int) -> _SubWord:
        modifiers = _Modifiers(bit(raw, low + 4), bit(raw, low + 5), _sign(name))
        return _SubWord(register, scalar, bits(raw, low + 2, low), bit(raw, low + 3), modifiers)

    def read(self, wave: Wave) -> Array:
        word = (
            np.full(NUM_LANES, wave.s[self.register], U32)
            if self.is_scalar
            else wave.v[self.register].copy()
        )
        if self.select < 6:
            width, at = (8, 8 * self.select) if self.select < 4 else (16, 16 * (self.select - 4))
            word = word >> U32(at) & U32((1 << width) - 1)
            if self.extend:
                top = U32(1 << (width - 1))
                word = (word ^ top) - top
        return self.modifiers.apply(word)


def _place(result: Array, old: Array, select: int, unused: int) -> Array:
    """A result put into the byte or half that SDWA selects; the rest zero, sign or kept."""
    if select >= 6:
        return result
    at, width = (8 * select, 8) if select < 4 else (16 * (select - 4), 16)
    mask = (1 << width) - 1
    placed = (result & U32(mask)) << U32(at)
    if unused == 2:
        return placed | old & ~U32(mask << at & 0xFFFFFFFF)
    if unused == 1:
        above = U32((0xFFFFFFFF << (at + width)) & 0xFFFFFFFF)
        return placed | np.where(result >> U32(width - 1) & U32(1), above, U32(0))
    return placed


def sdwa(machine: Machine, name: str, kind: str, raw: int) -> Override:
    """Sub-dword addressing: sources and result are bytes or halves."""
    compares, is_unary = kind.startswith("VOPC"), kind.startswith("VOP1")
    if not compares and (bit(raw, 45) or bits(raw, 47, 46)):
        raise NotImplementedError(f"{name}: SDWA clamp or output modifier")
    sources = [_SubWord.of(raw, name, bits(raw, 39, 32), 48, bit(raw, 55))]
    if not is_unary:
        sources.append(_SubWord.of(raw, name, bits(raw, 16, 9), 56, bit(raw, 63)))
    destination = None if compares else bits(raw, 24, 17)
    select, unused = (6, 0) if compares else (bits(raw, 42, 40), bits(raw, 44, 43))
    mask_register = bits(raw, 46, 40) if bit(raw, 47) else _VCC
    t0, t1, td = _spare(destination, *(s.register for s in sources))[:3]
    word = _retarget(raw, src0=t0, src1=None if is_unary else t1, dst=None if compares else td)
    plain = machine.patched(word)

    def run(wave: Wave) -> None:
        kept, vcc = wave.v[[t0, t1, td]].copy(), wave.s[_VCC : _VCC + 2].copy()
        values = [source.read(wave) for source in sources]
        for register, value in zip((t0, t1), values, strict=False):
            wave.v[register] = value
        if destination is not None:
            wave.v[td] = kept[2] if destination == td else wave.v[destination]
        plain(wave)
        result = wave.v[td].copy()
        wave.v[[t0, t1, td]] = kept
        if destination is not None:
            wave.write(destination, _place(result, wave.v[destination], select, unused))
        elif mask_register != _VCC:
            made = wave.s[_VCC : _VCC + 2].copy()
            wave.s[_VCC : _VCC + 2] = vcc
            wave.s[mask_register : mask_register + 2] = made

    return run
