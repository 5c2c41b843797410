"""Elementwise ops on lanes or scalars: one function from register values to a register value."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from k3compiler.targets.cpu.formats import Lanes, f32_literal, kind_of
from k3compiler.targets.cpu.text import Writer

_INT_PREDICATES = ("eq", "ne", "slt", "sle", "sgt", "sge", "ult", "ule", "ugt", "uge")
_FLOAT_PREDICATES = (
    "false", "oeq", "ogt", "oge", "olt", "ole", "one", "ord",
    "ueq", "ugt", "uge", "ult", "ule", "une", "uno", "true",
)  # fmt: skip
BINARY = frozenset({
    "arith.addf", "arith.subf", "arith.mulf", "arith.divf", "arith.minnumf", "arith.maxnumf",
    "arith.minimumf", "arith.maximumf",
    "arith.addi", "arith.subi", "arith.muli", "arith.divsi", "arith.remsi", "arith.divui", "arith.remui",
    "arith.andi", "arith.ori", "arith.xori", "arith.shli", "arith.shrui", "arith.shrsi",
    "arith.minsi", "arith.maxsi", "arith.minui", "arith.maxui",
})  # fmt: skip
PLAIN_UNARY = frozenset({"arith.negf", "math.sqrt", "math.absf", "math.floor", "math.roundeven"})


def literal(value: float | bool, dtype: str) -> str:
    """A constant of a tile dtype as MLIR text (of its register type)."""
    if dtype == "f32":
        return f32_literal(float(value))
    if dtype == "i1":
        return "true" if value else "false"
    if dtype in ("i32", "i16", "i8"):
        return str(int(value))
    return str(_bits(float(value), dtype))


def _bits(value: float, dtype: str) -> int:
    kinds: dict[str, tuple[Any, Any]] = {
        "bf16": (ml_dtypes.bfloat16, np.int16),
        "f16": (np.float16, np.int16),
        "e4m3": (ml_dtypes.float8_e4m3fn, np.int8),
    }
    kind, integer = kinds[dtype]
    return int(np.asarray(value, kind).view(integer))


def compute(
    w: Writer,
    name: str,
    operands: list[str],
    dtypes: list[str],
    attributes: dict[str, Any],
    width: int | None,
) -> str | None:
    """Emits an ``arith`` or ``math`` op; None where this target does not know it."""
    kind = kind_of(dtypes[0], width)
    if name in BINARY:
        return w.emit(f"{name} {operands[0]}, {operands[1]} : {kind}")
    if name in PLAIN_UNARY:
        return w.emit(f"{name} {operands[0]} : {kind}")
    lanes = Lanes(w, width)
    match name:
        case "arith.cmpi":
            predicate = _INT_PREDICATES[attributes["predicate"].value]
            return w.emit(f"arith.cmpi {predicate}, {operands[0]}, {operands[1]} : {kind}")
        case "arith.cmpf":
            predicate = _FLOAT_PREDICATES[attributes["predicate"].value]
            return w.emit(f"arith.cmpf {predicate}, {operands[0]}, {operands[1]} : {kind}")
        case "arith.select":
            return lanes.select(*operands, kind=kind_of(dtypes[1], width))
        case "math.rsqrt":
            return lanes.div(lanes.f(1.0), w.emit(f"math.sqrt {operands[0]} : {kind}"))
        case "math.exp":
            return exp(lanes, operands[0])
        case "math.exp2":
            return exp2(lanes, operands[0])
        case "math.log":
            return log(lanes, operands[0])
        case "math.tanh":
            return tanh(lanes, operands[0])
        case _:
            return None


# -- functions as polynomials (relative error about one f32 ulp) -------------------------------------
_EXP = (
    1.9875691500e-4,
    1.3981999507e-3,
    8.3334519073e-3,
    4.1665795894e-2,
    1.6666665459e-1,
    5.0000001201e-1,
)
_LOG = (
    7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1,
    -1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1,
)  # fmt: skip
_TANH = (
    -5.70498872745e-3,
    2.06390887954e-2,
    -5.37397155531e-2,
    1.33314422036e-1,
    -3.33332819422e-1,
)


def _clamped(n: Lanes, x: str, low: float, high: float) -> str:
    x = n.select(n.compare("ogt", x, n.f(high)), n.f(high), x)
    return n.select(n.compare("olt", x, n.f(low)), n.f(low), x)


def _scaled_exp(n: Lanes, r: str, count: str) -> str:
    """e^r 2^count for small r; two steps, so that subnormals and infinity come out right."""
    square = n.mul(r, r)
    y = n.add(n.fma(n.horner(r, _EXP), square, r), n.f(1.0))
    whole = n.convert("fptosi", count, n.f32, n.i32)
    first = n.int("shrsi", whole, n.i(1))
    for power in (first, n.int("subi", whole, first)):
        biased = n.int("addi", power, n.i(127))
        y = n.mul(y, n.from_bits(n.int("shli", biased, n.i(23))))
    return y


def exp(n: Lanes, x: str) -> str:
    """e^x: argument reduction by ln 2 in two constants, then a degree-5 polynomial."""
    x = _clamped(n, x, -104.0, 88.8)
    count = n.w.emit(f"math.roundeven {n.mul(x, n.f(1.44269504088896341))} : {n.f32}")
    r = n.fma(count, n.f(-0.693145751953125), x)
    return _scaled_exp(n, n.fma(count, n.f(-1.428606765330187e-06), r), count)


def exp2(n: Lanes, x: str) -> str:
    """2^x."""
    x = _clamped(n, x, -151.0, 128.5)
    count = n.w.emit(f"math.roundeven {x} : {n.f32}")
    return _scaled_exp(n, n.mul(n.sub(x, count), n.f(0.69314718055994531)), count)


def log(n: Lanes, x: str) -> str:
    """ln x; -inf at 0, NaN below, infinity and NaN pass."""
    is_tiny = n.compare("olt", x, n.f(2.0**-126))
    scaled = n.select(is_tiny, n.mul(x, n.f(2.0**23)), x)
    word = n.bits(scaled)
    exponent = n.int("subi", n.int("andi", n.int("shrui", word, n.i(23)), n.i(255)), n.i(126))
    exponent = n.select(is_tiny, n.int("subi", exponent, n.i(23)), exponent, n.i32)
    m = n.from_bits(n.int("ori", n.int("andi", word, n.i(0x7FFFFF)), n.i(0x3F000000)))
    is_low = n.compare("olt", m, n.f(0.70710678118654752))
    exponent = n.select(is_low, n.int("subi", exponent, n.i(1)), exponent, n.i32)
    m = n.sub(n.select(is_low, n.add(m, m), m), n.f(1.0))
    e, square = n.convert("sitofp", exponent, n.i32, n.f32), n.mul(m, m)
    y = n.mul(n.mul(n.horner(m, _LOG), m), square)
    y = n.fma(e, n.f(-2.12194440e-4), y)
    y = n.add(m, n.fma(square, n.f(-0.5), y))
    y = n.fma(e, n.f(0.693359375), y)
    y = n.select(n.compare("oeq", x, n.f(float("inf"))), x, y)
    y = n.select(n.compare("oeq", x, n.f(0.0)), n.f(float("-inf")), y)
    bad = n.compare("ult", x, n.f(0.0))
    return n.select(bad, n.f(float("nan")), y)


def tanh(n: Lanes, x: str) -> str:
    """tanh x: an odd polynomial near 0, else 1 - 2 / (e^2|x| + 1)."""
    size = n.w.emit(f"math.absf {x} : {n.f32}")
    square = n.mul(x, x)
    near = n.fma(n.mul(n.horner(square, _TANH), square), x, x)
    far = n.add(exp(n, n.add(size, size)), n.f(1.0))
    far = n.sub(n.f(1.0), n.div(n.f(2.0), far))
    far = n.w.emit(f"math.copysign {far}, {x} : {n.f32}")
    return n.select(n.compare("olt", size, n.f(0.625)), near, far)
