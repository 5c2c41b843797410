"""Matrix instructions: MFMA 16x16 and 32x32, and the scaled f8f6f4 forms of gfx950."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from k3compiler.check.emulator.fields import F32, LANES, NUM_LANES, U32, Array, bit, bits
from k3compiler.check.emulator.formats import E2M1, E4M3, E5M2, SMALL
from k3compiler.check.emulator.machine import Override
from k3compiler.check.emulator.wave import Wave

_NAME = re.compile(r"V_MFMA_(?:SCALE_)?(F32|I32|F64)_(\d+)X(\d+)X(\d+)_(?:(\d+)B_)?(.*)")
_F8F6F4 = ("FP8", "BF8", "FP6", "BF6", "FP4")
_WIDTH = {
    "FP8": 8,
    "BF8": 8,
    "I8": 8,
    "FP6": 6,
    "BF6": 6,
    "FP4": 4,
    "BF16": 16,
    "F16": 16,
    "F32": 32,
}


@dataclass(frozen=True, slots=True)
class _Shape:
    """Rows (= columns) and K of the product; ``split_bytes`` for 8-bit operands in two runs along K."""

    rows: int
    depth: int
    split_bytes: bool

    @property
    def groups(self) -> int:
        """Lane groups along K."""
        return NUM_LANES // self.rows

    @property
    def per_lane(self) -> int:
        return self.depth // self.groups

    def depth_of(self, fmt: str) -> Array:
        """k of every element of every lane ``[64, per_lane]``."""
        element, group = np.arange(self.per_lane), np.arange(self.groups)[:, None]
        if self.split_bytes and fmt in ("FP8", "BF8"):
            of_group = 16 * group + element % 16 + self.depth // 2 * (element // 16)
        else:
            of_group = self.per_lane * group + element
        return of_group[LANES // self.rows]


def _numbers(words: Array, fmt: str, per_lane: int) -> Array:
    """A lane's registers ``[64, registers]`` as ``[64, per_lane]`` numbers."""
    match fmt:
        case "F32":
            return words.view(F32)
        case "BF16":
            return (words.view(np.uint16).astype(U32) << U32(16)).view(F32)
        case "F16":
            return words.view(np.float16).astype(F32)
        case "I8":
            return words.view(np.int8).astype(np.float64)
        case "FP8" | "BF8":
            return (E4M3 if fmt == "FP8" else E5M2)[words.view(np.uint8)]
        case "FP4":
            pair = words.view(np.uint8)
            return np.stack([E2M1[pair & 15], E2M1[pair >> 4]], -1).reshape(NUM_LANES, per_lane)
        case _:
            ones = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little")
            six = ones.reshape(NUM_LANES, per_lane, 6) << np.arange(6, dtype=np.uint8)
            return SMALL[fmt][six.sum(-1)]


def _operand(shape: _Shape, source: int, accumulation: int, fmt: str) -> Callable[[Wave], Array]:
    """Reads one operand as a float64 matrix ``[rows, depth]``."""
    registers = shape.per_lane * _WIDTH[fmt] // 32
    depth = shape.depth_of(fmt)
    row = np.broadcast_to((LANES % shape.rows)[:, None], depth.shape)

    def read(wave: Wave) -> Array:
        if source < 256:
            words = np.full((registers, NUM_LANES), wave.s[source], U32)
        else:
            file = wave.a if accumulation else wave.v
            words = file[source - 256 : source - 256 + registers]
        matrix = np.empty((shape.rows, shape.depth), np.float64)
        matrix[row, depth] = _numbers(np.ascontiguousarray(words.T), fmt, shape.per_lane)
        return matrix

    return read


def _scales(shape: _Shape, source: int, byte: int) -> Callable[[Wave], Array]:
    """One operand's e8m0 scales ``[rows, depth]``: lane ``g * rows + r`` holds row r, block g of 32."""

    def read(wave: Wave) -> Array:
        code = (wave.source(source) >> U32(8 * byte) & U32(255)).astype(np.int64)
        scale = np.where(code == 255, np.nan, np.ldexp(1.0, code - 127))
        return np.repeat(scale.reshape(shape.groups, shape.rows).T, shape.per_lane, axis=1)

    return read


def _formats(kind: str, raw: int) -> tuple[str, str] | None:
    first, second = bits(raw, 10, 8), bits(raw, 63, 61)
    if "F8F6F4" in kind:
        return _F8F6F4[first], _F8F6F4[second]
    if first or second:
        return None
    if kind in ("BF16", "F16", "F32", "I8"):
        return kind, kind
    if kind == "BF16_1K":
        return "BF16", "BF16"
    pair = re.fullmatch(r"(FP8|BF8)_(FP8|BF8)", kind)
    return (pair[1], pair[2]) if pair else None


def _result_places(size: int) -> tuple[Array, Array]:
    """(row, column) of every result register and lane."""
    register = np.arange(size * size // NUM_LANES)[:, None]
    if size == 32:
        row = register // 4 * 8 + (LANES // 32 * 4)[None, :] + register % 4
    else:
        row = (LANES // 16 * 4)[None, :] + register
    return row, np.broadcast_to((LANES % size)[None, :], row.shape)


def matrix_product(name: str, kind: str, raw: int) -> Override | None:
    """``D = A Bᵀ + C``; None for a form that is not done (blocks, f64, sparse)."""
    is_scaled = kind == "VOP3PX2"
    word = raw >> 64 if is_scaled else raw
    found = _NAME.search(name)
    if (
        found is None
        or found[5]
        or found[1] == "F64"
        or (found[2], found[3]) not in (("16", "16"), ("32", "32"))
    ):
        return None
    formats = _formats(found[6].replace("_E64", ""), word)
    shape = _Shape(int(found[2]), int(found[4]), "F8F6F4" in found[6])
    if formats is None or shape.per_lane == 0:
        return None
    first = _operand(shape, bits(word, 40, 32), bit(word, 59), formats[0])
    second = _operand(shape, bits(word, 49, 41), bit(word, 60), formats[1])
    scales: tuple[Callable[[Wave], Array], ...] = ()
    if is_scaled:
        bytes_of = (bit(raw, 11) | bit(raw, 59) << 1, bit(raw, 12) | bit(raw, 60) << 1)
        registers = bits(raw, 40, 32), bits(raw, 49, 41)
        scales = tuple(_scales(shape, r, b) for r, b in zip(registers, bytes_of, strict=True))
    destination, addend, in_accumulation = bits(word, 7, 0), bits(word, 58, 50), bit(word, 15)
    rows, columns = _result_places(shape.rows)
    count, is_integer = len(rows), found[1] == "I32"

    def run(wave: Wave) -> None:
        a, b = first(wave), second(wave)
        if scales:
            a, b = a * scales[0](wave), b * scales[1](wave)
        product = (a @ b.T)[rows, columns]
        file = wave.a if in_accumulation else wave.v
        raw_c = (
            file[addend - 256 : addend - 256 + count]
            if addend >= 256
            else wave.s[addend : addend + 1]
        )
        if is_integer:
            total = product + raw_c.view(np.int32).astype(np.float64)
            file[destination : destination + count] = total.astype(np.int64).astype(U32)
        else:
            file[destination : destination + count] = (
                (product + raw_c.view(F32)).astype(F32).view(U32)
            )

    return run
