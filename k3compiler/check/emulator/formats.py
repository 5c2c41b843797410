"""Number formats of the matrix units and conversions: fp8, fp6, fp4, bf16."""

from __future__ import annotations

import numpy as np

from k3compiler.check.emulator.fields import F32, U32, Array, Words


def _small_float(exponent: int, mantissa: int, bias: int) -> Array:
    """Every value of a format with a sign, subnormals and no specials."""
    codes = np.arange(1 << (1 + exponent + mantissa))
    field = codes >> mantissa & ((1 << exponent) - 1)
    fraction = (codes & ((1 << mantissa) - 1)) / 2.0**mantissa
    value = np.where(
        field == 0, fraction * 2.0 ** (1 - bias), (1 + fraction) * 2.0 ** (field - bias)
    )
    return np.where(codes >> (exponent + mantissa) == 1, -value, value).astype(F32)


def _e4m3() -> Array:
    table = _small_float(4, 3, 7)
    table[[0x7F, 0xFF]] = np.nan
    return table


def _e5m2() -> Array:
    table = _small_float(5, 2, 15)
    for sign, code in ((1.0, 0x7C), (-1.0, 0xFC)):
        table[code] = sign * np.inf
        table[code + 1 : code + 4] = np.nan
    return table


def _fnuz(exponent: int, mantissa: int, bias: int) -> Array:
    """The kind that gfx942 has: no infinity, one zero, NaN in its place."""
    table = _small_float(exponent, mantissa, bias)
    table[0x80] = np.nan
    return table


E4M3, E5M2 = _e4m3(), _e5m2()
E4M3_FNUZ, E5M2_FNUZ = _fnuz(4, 3, 8), _fnuz(5, 2, 16)
E2M1, E2M3, E3M2 = _small_float(2, 1, 1), _small_float(2, 3, 1), _small_float(3, 2, 3)
SMALL = {"FP8": E4M3, "BF8": E5M2, "FP6": E2M3, "BF6": E3M2, "FP4": E2M1}


def bf16_bits(value: Array) -> Words:
    """bf16 of f32, rounded to nearest even, in the low half."""
    word = np.ascontiguousarray(value, F32).view(U32)
    rounded = (word + U32(0x7FFF) + (word >> U32(16) & U32(1))) >> U32(16)
    return np.where(np.isnan(value), U32(0x7FC0), rounded).astype(U32)


def encode_small(value: Array, table: Array, *, saturate: bool = True) -> Words:
    """Codes of an 8-, 6- or 4-bit format, to nearest even; without ``saturate`` fp8 overflow is NaN or infinity."""
    half = len(table) // 2
    finite = np.isfinite(table[:half])
    known, code = table[:half][finite].astype(np.float64), np.arange(half)[finite]
    size = np.abs(value.astype(np.float64))
    at = np.clip(np.searchsorted(known, size), 1, len(known) - 1)
    below, above = size - known[at - 1], known[at] - size
    down = (below < above) | ((below == above) & (code[at - 1] % 2 == 0))
    chosen = np.where(down, code[at - 1], code[at])
    chosen = np.where(size >= known[-1], code[-1], chosen)
    if half == 128:
        if not saturate and known[-1] == 448:
            chosen = np.where(size > 464, 0x7F, chosen)
        elif not saturate:
            chosen = np.where(size >= 61440, 0x7C, chosen)
        chosen = np.where(np.isnan(value), 0x7F, chosen)
    return (chosen | np.where(np.signbit(value), half, 0)).astype(U32)
