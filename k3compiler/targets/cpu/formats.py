"""Number formats in registers: bf16, f16 and e4m3 are kept as their bits; conversions are integer ops.

So memory never sees a type that a CPU level lacks, and v3 and v4 give the same bits.
"""

from __future__ import annotations

import struct

from k3compiler.targets.cpu.text import Writer, vector

REGISTER = {
    "f32": "f32", "i32": "i32", "bf16": "i16", "f16": "i16", "i16": "i16",
    "e4m3": "i8", "i8": "i8", "i1": "i1",
}  # fmt: skip
BYTES = {"f32": 4, "i32": 4, "bf16": 2, "f16": 2, "i16": 2, "e4m3": 1, "i8": 1, "i1": 1}


def kind_of(dtype: str, width: int | None) -> str:
    """The register type of ``width`` lanes of a tile dtype."""
    return vector(width, REGISTER[dtype])


def f32_literal(value: float) -> str:
    """A float as the hexadecimal literal of its f32 bits."""
    try:
        return f"0x{struct.unpack('<I', struct.pack('<f', value))[0]:08X}"
    except OverflowError:
        return "0x7F800000" if value > 0 else "0xFF800000"


class Lanes:
    """Arithmetic on ``width`` lanes (None: scalars), as short method calls."""

    def __init__(self, writer: Writer, width: int | None) -> None:
        self.w, self.width = writer, width
        self.f32, self.i32 = vector(width, "f32"), vector(width, "i32")
        self.i16, self.i8, self.i1 = vector(width, "i16"), vector(width, "i8"), vector(width, "i1")

    # -- constants -----------------------------------------------------------------------------
    def f(self, value: float) -> str:
        return self.w.constant(f32_literal(value), self.f32)

    def i(self, value: int) -> str:
        return self.w.constant(str(value), self.i32)

    # -- ops -----------------------------------------------------------------------------------
    def op(self, name: str, *operands: str, kind: str) -> str:
        return self.w.emit(f"{name} {', '.join(operands)} : {kind}")

    def add(self, a: str, b: str) -> str:
        return self.op("arith.addf", a, b, kind=self.f32)

    def sub(self, a: str, b: str) -> str:
        return self.op("arith.subf", a, b, kind=self.f32)

    def mul(self, a: str, b: str) -> str:
        return self.op("arith.mulf", a, b, kind=self.f32)

    def div(self, a: str, b: str) -> str:
        return self.op("arith.divf", a, b, kind=self.f32)

    def fma(self, a: str, b: str, c: str) -> str:
        return self.op("math.fma", a, b, c, kind=self.f32)

    def int(self, name: str, a: str, b: str) -> str:
        """``arith.<name>`` on i32 lanes."""
        return self.op(f"arith.{name}", a, b, kind=self.i32)

    def compare(self, predicate: str, a: str, b: str) -> str:
        return self.w.emit(f"arith.cmpf {predicate}, {a}, {b} : {self.f32}")

    def compare_int(self, predicate: str, a: str, b: str) -> str:
        return self.w.emit(f"arith.cmpi {predicate}, {a}, {b} : {self.i32}")

    def select(self, condition: str, a: str, b: str, kind: str | None = None) -> str:
        kind = kind or self.f32
        head = "" if self.width is None else f"{self.i1}, "
        return self.w.emit(f"arith.select {condition}, {a}, {b} : {head}{kind}")

    def convert(self, name: str, value: str, source: str, target: str) -> str:
        return self.w.emit(f"arith.{name} {value} : {source} to {target}")

    def bits(self, value: str) -> str:
        return self.convert("bitcast", value, self.f32, self.i32)

    def from_bits(self, value: str) -> str:
        return self.convert("bitcast", value, self.i32, self.f32)

    def horner(self, x: str, coefficients: tuple[float, ...]) -> str:
        """The polynomial with the highest coefficient first."""
        result = self.f(coefficients[0])
        for coefficient in coefficients[1:]:
            result = self.fma(result, x, self.f(coefficient))
        return result


# -- to f32 --------------------------------------------------------------------------------------
def to_f32(n: Lanes, value: str, dtype: str) -> str:
    """Lanes of ``dtype`` as f32."""
    match dtype:
        case "f32":
            return value
        case "bf16":
            wide = n.convert("extui", value, n.i16, n.i32)
            return n.from_bits(n.int("shli", wide, n.i(16)))
        case "f16":
            half = vector(n.width, "f16")
            return n.convert("extf", n.convert("bitcast", value, n.i16, half), half, n.f32)
        case "e4m3":
            return _e4m3_to_f32(n, value)
        case _:
            return n.convert("sitofp", to_i32(n, value, dtype), n.i32, n.f32)


def _e4m3_to_f32(n: Lanes, value: str) -> str:
    wide = n.convert("extui", value, n.i8, n.i32)
    magnitude = n.int("andi", wide, n.i(0x7F))
    number = n.mul(n.from_bits(n.int("shli", magnitude, n.i(20))), n.f(2.0**120))
    is_nan = n.compare_int("eq", magnitude, n.i(0x7F))
    number = n.select(is_nan, n.f(float("nan")), number)
    sign = n.int("shli", n.int("andi", wide, n.i(0x80)), n.i(24))
    return n.from_bits(n.int("ori", n.bits(number), sign))


def to_i32(n: Lanes, value: str, dtype: str) -> str:
    """Lanes of ``dtype`` as i32 (bytes are unsigned, floats truncate)."""
    match dtype:
        case "i32":
            return value
        case "i8" | "i16" | "i1":
            return n.convert("extui", value, kind_of(dtype, n.width), n.i32)
        case _:
            return n.convert("fptosi", to_f32(n, value, dtype), n.f32, n.i32)


# -- from f32 ------------------------------------------------------------------------------------
def to_bf16(n: Lanes, value: str) -> str:
    """f32 rounded to nearest even, as i16 bits; NaN stays NaN."""
    bits = n.bits(value)
    odd = n.int("andi", n.int("shrui", bits, n.i(16)), n.i(1))
    rounded = n.int("addi", bits, n.int("addi", odd, n.i(0x7FFF)))
    is_nan = n.compare("uno", value, value)
    rounded = n.select(is_nan, n.int("ori", bits, n.i(0x400000)), rounded, n.i32)
    return n.convert("trunci", n.int("shrui", rounded, n.i(16)), n.i32, n.i16)


def to_e4m3(n: Lanes, value: str) -> str:
    """f32 rounded to nearest even, saturating at 448, as i8 bits; NaN is 0x7f."""
    bits = n.bits(value)
    size = n.w.emit(f"math.absf {value} : {n.f32}")
    size = n.select(n.compare("ogt", size, n.f(448.0)), n.f(448.0), size)
    word = n.bits(size)
    odd = n.int("andi", n.int("shrui", word, n.i(20)), n.i(1))
    normal = n.int("shrui", n.int("addi", word, n.int("addi", odd, n.i(0x7FFFF))), n.i(20))
    normal = n.int("subi", normal, n.i(120 << 3))
    steps = n.w.emit(f"math.roundeven {n.mul(size, n.f(512.0))} : {n.f32}")
    small = n.convert("fptosi", steps, n.f32, n.i32)
    code = n.select(n.compare("olt", size, n.f(2.0**-6)), small, normal, n.i32)
    code = n.select(n.compare("uno", value, value), n.i(0x7F), code, n.i32)
    sign = n.int("shli", n.int("shrui", bits, n.i(31)), n.i(7))
    return n.convert("trunci", n.int("ori", code, sign), n.i32, n.i8)


def cast(n: Lanes, value: str, source: str, target: str) -> str:
    """``tile.cast`` of docs/tile.md."""
    if source == target:
        return value
    match target:
        case "f32":
            return to_f32(n, value, source)
        case "bf16":
            return to_bf16(n, to_f32(n, value, source))
        case "e4m3":
            return to_e4m3(n, to_f32(n, value, source))
        case "f16":
            half = vector(n.width, "f16")
            rounded = n.convert("truncf", to_f32(n, value, source), n.f32, half)
            return n.convert("bitcast", rounded, half, n.i16)
        case "i32":
            return to_i32(n, value, source)
        case "i1":
            return n.compare_int("ne", to_i32(n, value, source), n.i(0))
        case _:
            return n.convert("trunci", to_i32(n, value, source), n.i32, kind_of(target, n.width))


def e8m0_to_f32(n: Lanes, code: str) -> str:
    """Scale bytes (i32 lanes) as f32: 2^(code - 127), 255 is NaN, 0 is 2^-127."""
    bits = n.int("shli", code, n.i(23))
    bits = n.select(n.compare_int("eq", code, n.i(0)), n.i(0x00400000), bits, n.i32)
    bits = n.select(n.compare_int("eq", code, n.i(255)), n.i(0x7FC00000), bits, n.i32)
    return n.from_bits(bits)
