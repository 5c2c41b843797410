"""What an atomic instruction stores: ``f(old, operand)`` on 32 and 64 bits."""

from __future__ import annotations

import operator
import struct
from collections.abc import Callable
from typing import TypeVar

import ml_dtypes
import numpy as np

from k3compiler.check.emulator.fields import signed

T = TypeVar("T")


def _f32(bits: int) -> float:
    return struct.unpack("<f", struct.pack("<I", bits))[0]


def _f32_bits(value: float) -> int:
    return int(np.float32(value).view(np.uint32))


_INTEGER: dict[str, Callable[[int, int], int]] = {
    "ADD": operator.add,
    "SUB": operator.sub,
    "AND": operator.and_,
    "OR": operator.or_,
    "XOR": operator.xor,
    "UMIN": min,
    "UMAX": max,
    "MIN": min,
    "MAX": max,
    "SWAP": lambda old, value: value,
    "WRXCHG": lambda old, value: value,
    "INC": lambda old, value: 0 if old >= value else old + 1,
    "DEC": lambda old, value: value if old == 0 or old > value else old - 1,
}


def _integer(key: str, old: int, value: int, width: int, *, is_signed: bool, other: int) -> int:
    if key in ("CMPSWAP", "CMPST"):
        replaces, new = (other, value) if key == "CMPSWAP" else (value, other)
        return new if old == replaces else old
    if key in ("SMIN", "SMAX") or (is_signed and key in ("MIN", "MAX")):
        old, value, key = signed(old, width), signed(value, width), key[-3:]
    return _known(_INTEGER, key)(old, value) & ((1 << width) - 1)


def _known(table: dict[str, T], key: str) -> T:
    if key not in table:
        raise NotImplementedError(f"atomic {key}")
    return table[key]


_FLOAT: dict[str, Callable[[float, float], float]] = {"ADD": operator.add, "MIN": min, "MAX": max}


def _packed_add(kind: str, old: int, value: int) -> int:
    dtype = ml_dtypes.bfloat16 if kind == "PKBF16" else np.float16
    pair = [np.array([word & 0xFFFF, word >> 16], np.uint16).view(dtype) for word in (old, value)]
    low, high = (
        (pair[0].astype(np.float32) + pair[1].astype(np.float32)).astype(dtype).view(np.uint16)
    )
    return int(low) | int(high) << 16


def atomic32(key: str, kind: str, old: int, value: int, other: int = 0) -> int:
    """The new word; ``other`` is the second operand of compare-and-swap."""
    if kind == "F32":
        return _f32_bits(_known(_FLOAT, key)(_f32(old), _f32(value)))
    if kind in ("PKBF16", "PKF16"):
        return _packed_add(kind, old, value)
    return _integer(key, old, value, 32, is_signed=kind == "I32", other=other)


def atomic64(key: str, kind: str, old: int, value: int, other: int = 0) -> int:
    """The new double word."""
    if kind != "F64":
        return _integer(key, old, value, 64, is_signed=False, other=other)
    a, b = struct.unpack("<dd", struct.pack("<QQ", old, value))
    return struct.unpack("<Q", struct.pack("<d", _known(_FLOAT, key)(a, b)))[0]
