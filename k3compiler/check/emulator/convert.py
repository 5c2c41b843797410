"""Conversions to and from small floats, lane swaps and three-input bit operations."""

from __future__ import annotations

import numpy as np

from k3compiler.check.emulator.fields import F32, LANES, U32, Array, bit, bits
from k3compiler.check.emulator.formats import (
    E2M1,
    E4M3,
    E4M3_FNUZ,
    E5M2,
    E5M2_FNUZ,
    SMALL,
    bf16_bits,
    encode_small,
)
from k3compiler.check.emulator.machine import GFX942, Machine, Override
from k3compiler.check.emulator.wave import Wave

_WIDE = ("F32", "F16", "BF16")
_WORD_1 = 5  # of an SDWA selection


def _operands(raw: int) -> tuple[int, int, int, int]:
    """Destination and three sources of a VOP3 instruction."""
    return bits(raw, 7, 0), bits(raw, 40, 32), bits(raw, 49, 41), bits(raw, 58, 50)


def _float(wave: Wave, raw: int, index: int) -> Array:
    """Source ``index`` as f32 with its modifiers."""
    word = wave.source(_operands(raw)[1 + index])
    if bit(raw, 8 + index):
        word = word & U32(0x7FFFFFFF)
    if bit(raw, 61 + index):
        word = word ^ U32(0x80000000)
    return word.view(F32)


def pack_bf16(_machine: Machine, _name: str, raw: int) -> Override:
    """V_CVT_PK_BF16_F32."""

    def run(wave: Wave) -> None:
        low, high = bf16_bits(_float(wave, raw, 0)), bf16_bits(_float(wave, raw, 1))
        wave.write(bits(raw, 7, 0), low | high << U32(16))

    return run


def pack_fp8(_machine: Machine, name: str, raw: int) -> Override:
    """V_CVT_PK_FP8_F32 and V_CVT_PK_BF8_F32."""
    table = E4M3 if "FP8" in name else E5M2

    def run(wave: Wave) -> None:
        codes = [encode_small(_float(wave, raw, i), table, saturate=wave.saturates) for i in (0, 1)]
        wave.write_half(bits(raw, 7, 0), codes[0] | codes[1] << U32(8), bit(raw, 14))

    return run


def unpack_fp8(machine: Machine, name: str, kind: str, raw: int) -> Override:
    """V_CVT_PK_F32_FP8 and V_CVT_PK_F32_BF8: two bytes of a word (SDWA says which) as two f32 registers."""
    is_fnuz, is_sdwa = machine.flag == GFX942, "_SDWA" in kind
    kinds = (E4M3_FNUZ if is_fnuz else E4M3, E5M2_FNUZ if is_fnuz else E5M2)
    table, destination = kinds["BF8" in name], bits(raw, 24, 17)
    source = bits(raw, 39, 32) + 256 if is_sdwa else bits(raw, 8, 0)
    shift = 16 if is_sdwa and bits(raw, 50, 48) == _WORD_1 else 0

    def run(wave: Wave) -> None:
        pair = wave.source(source) >> U32(shift)
        values = [table[pair >> U32(8 * i) & U32(255)].view(U32) for i in (0, 1)]
        for index, value in enumerate(values):
            wave.write(destination + index, value)

    return run


def _power_of_two(word: Array) -> Array:
    """2 to the exponent field of an f32."""
    return np.ldexp(np.float64(1), (word >> U32(23) & U32(255)).astype(np.int64) - 127)


def _halves(word: Array, kind: str) -> tuple[Array, Array]:
    """Two packed bf16 or f16 as f32."""
    if kind == "BF16":
        return (word << U32(16)).view(F32), (word & U32(0xFFFF0000)).view(F32)
    low, high = (word & U32(0xFFFF)).astype(np.uint16), (word >> U32(16)).astype(np.uint16)
    return low.view(np.float16).astype(F32), high.view(np.float16).astype(F32)


def _from_small(raw: int, wide: str, small: str) -> Override:
    """Two values of a small format, selected from a word, times a power of two."""
    destination, source, scale, _ = _operands(raw)
    table, select = SMALL[small], bits(raw, 14, 11)

    def run(wave: Wave) -> None:
        word = wave.source(source)
        if small == "FP4":
            pair = word >> U32(8 * (select & 3))
            codes = pair & U32(15), pair >> U32(4) & U32(15)
        else:
            pair = word >> U32(16 * (select & 1))
            codes = pair & U32(255), pair >> U32(8) & U32(255)
        factor = _power_of_two(wave.source(scale))
        x, y = ((table[c] * factor).astype(F32) for c in codes)
        if wide == "F32":
            wave.write(destination, x.view(U32))
            wave.write(destination + 1, y.view(U32))
        elif wide == "BF16":
            wave.write(destination, bf16_bits(x) | bf16_bits(y) << U32(16))
        else:
            low, high = (v.astype(np.float16).view(np.uint16).astype(U32) for v in (x, y))
            wave.write(destination, low | high << U32(16))

    return run


def _to_small(raw: int, small: str, wide: str) -> Override:
    """Two wide values divided by a power of two (the last source), into a byte or half of the destination."""
    destination, source, scale, last = _operands(raw)
    table, select = SMALL[small], bits(raw, 14, 11)

    def run(wave: Wave) -> None:
        if wide == "F32":
            x, y = _float(wave, raw, 0), _float(wave, raw, 1)
            factor = _power_of_two(wave.source(last))
        else:
            x, y = _halves(wave.source(source), wide)
            factor = _power_of_two(wave.source(scale))
        x, y = x / factor, y / factor
        if small == "FP4":
            pair = encode_small(x, E2M1) | encode_small(y, E2M1) << U32(4)
            at, lanes = 8 * (select >> 2 & 3), wave.active()
            kept = wave.v[destination, lanes] & U32(~(255 << at) & 0xFFFFFFFF)
            wave.v[destination, lanes] = kept | pair[lanes] << U32(at)
        else:
            codes = [encode_small(v, table, saturate=wave.saturates) for v in (x, y)]
            wave.write_half(destination, codes[0] | codes[1] << U32(8), select >> 3 & 1)

    return run


def scaled_conversion(_machine: Machine, name: str, raw: int) -> Override | None:
    """V_CVT_SCALEF32_PK_*: pairs between a small format and a wide one."""
    parts = name.replace("_E64", "").removeprefix("V_CVT_SCALEF32_").split("_")
    if len(parts) != 3 or parts[0] != "PK":
        return None
    _, to, of = parts
    if of in ("FP8", "BF8", "FP4") and to in _WIDE:
        return _from_small(raw, to, of)
    if to in ("FP8", "BF8", "FP4") and of in _WIDE:
        return _to_small(raw, to, of)
    return None


def lane_swap(name: str, kind: str, raw: int) -> Override:
    """V_PERMLANE32_SWAP and V_PERMLANE16_SWAP: high lanes of one register, low lanes of the other."""
    first, second = (
        (bits(raw, 24, 17), bits(raw, 8, 0) - 256)
        if kind == "VOP1"
        else (bits(raw, 7, 0), bits(raw, 40, 32) - 256)
    )
    half = 32 if "32_SWAP" in name else 16
    high = LANES[32:] if half == 32 else np.concatenate([LANES[16:32], LANES[48:64]])
    low = high - half

    def run(wave: Wave) -> None:
        kept = wave.v[second, low].copy()
        wave.v[second, low] = wave.v[first, high]
        wave.v[first, high] = kept

    return run


def three_input_bits(name: str, raw: int) -> Override | None:
    """V_BITOP3_B32: a truth table over three inputs."""
    if "B16" in name:
        return None
    destination, *sources = _operands(raw)
    table = bits(raw, 60, 59) << 6 | bits(raw, 10, 8) << 3 | bits(raw, 63, 61)

    def run(wave: Wave) -> None:
        inputs = [wave.source(s) for s in sources]
        result = np.zeros(64, U32)
        for row in range(8):
            if table >> row & 1:
                term = U32(0xFFFFFFFF)
                for index, value in enumerate(inputs):
                    term = term & (value if row >> (2 - index) & 1 else ~value)
                result |= term
        wave.write(destination, result)

    return run
