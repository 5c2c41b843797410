"""Small tile programs that together use every op; their meaning is the numpy interpreter's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
import numpy as np

from k3compiler.dialects.tile.builder import Program
from k3compiler.dialects.tile.values import (
    absolute,
    dot,
    dot_scaled,
    exp,
    exp2,
    floor,
    log,
    maximum,
    minimum,
    rsqrt,
    sqrt,
    tanh,
    where,
)
from k3compiler.ir.bindings import ir
from k3compiler.kernels.base import Tile as TileDialect

Array = np.ndarray[Any, np.dtype[Any]]
BF16 = np.dtype(ml_dtypes.bfloat16)
E4M3 = np.dtype(ml_dtypes.float8_e4m3fn)


def build(body: Callable[[Program], None], symbol: str = "k") -> ir.Module:
    """The module of a body, in a context of its own."""
    context = ir.Context()
    context.enable_multithreading(False)
    with context, ir.Location.unknown():
        TileDialect.load()
        program = Program(symbol, "test.op")
        with program.body():
            body(program)
        return program.module


def maths(p: Program) -> None:
    """Every elementwise op, on [4, 64] of a ragged [T, 50]; each result in a row block of ``y``."""
    x, y = p.buffer("x", "f32", ("T", 50)), p.buffer("y", "f32", (16, "T", 64), "w")
    row = p.program_id(0) * 4
    v = x.load((row, 0), (4, 64), other=0.5)
    positive = absolute(v) + 0.25
    clamped = maximum(minimum(v, 3.0), -3.0)
    results = [
        exp(clamped), exp2(clamped), log(positive), sqrt(positive), rsqrt(positive), tanh(v),
        floor(v), v.unary("RoundEvenOp"), -v / positive, where(v > 0.0, v, v - 1.0),
        where(v.ne(v), 0.0, clamped), where((v <= 1.0) & (v >= -1.0), v * 0.0 + 1.0, 2.0) * v,
        v.cumsum(1), v.cumsum(0),
        v.max(1).expand(1) + p.zeros((4, 64)), v.min(0).expand(0) + p.zeros((4, 64)),
    ]  # fmt: skip
    for i, result in enumerate(results):
        y.store((i, row, 0), result)
    p.grid("cdiv(T, 4)")


def integers(p: Program) -> None:
    """i32 and i8 arithmetic, bit tricks, iota and scalar loads, a loop with scalars, a guarded store."""
    x, counts = p.buffer("x", "i8", (64,)), p.buffer("counts", "i32", (4,))
    y, total = p.buffer("y", "i32", (8, 64), "w"), p.buffer("total", "i32", (2,), "w")
    v = x.load((0,), (64,)).to("i32")
    i = p.arange(64)
    results = [
        v // 3, v % 7, (v << 4) | (v >> 2), (v & 15) ^ 9, i * v - 5, minimum(v, i), maximum(v, i),
        where(v.eq(i), i * 0 + 1, 0),
    ]  # fmt: skip
    for k, result in enumerate(results):
        y.store((k, 0), result.reshape(1, 64))
    limit = counts.load((1,))
    with p.loop(0, limit, carry=[p.constant(0, "i32")]) as (j, (acc,)):
        p.yield_(acc + counts.load((j % 4,)))
    (acc,) = p.results()
    total.store((0,), acc)
    with p.when(limit > 100):
        total.store((1,), acc)
    p.grid(1)


def casts(p: Program) -> None:
    """Every conversion, with values that round, saturate and truncate."""
    x, n = p.buffer("x", "f32", (64,)), p.buffer("n", "i8", (64,))
    b, h = p.buffer("b", "bf16", (64,), "w"), p.buffer("h", "f16", (64,), "w")
    e, i = p.buffer("e", "e4m3", (64,), "w"), p.buffer("i", "i32", (64,), "w")
    y, u = p.buffer("y", "f32", (4, 64), "w"), p.buffer("u", "i8", (64,), "w")
    v, count = x.load((0,), (64,)), n.load((0,), (64,))
    b.store((0,), v.to("bf16"))
    h.store((0,), v.to("bf16").to("f16"))
    e.store((0,), v.to("e4m3"))
    i.store((0,), minimum(maximum(v, -1e6), 1e6).to("i32"))
    y.store((0, 0), v.to("e4m3").to("f32").reshape(1, 64))
    y.store((1, 0), count.to("f32").reshape(1, 64))
    y.store((2, 0), (v.bitcast("i32") & -65536).bitcast("f32").reshape(1, 64))
    y.store((3, 0), (v > 0.0).to("f32").reshape(1, 64))
    u.store((0,), (count.to("i32") + 200).to("i8"))
    p.grid(1)


def gathers(p: Program) -> None:
    """Rows through an index tile (negative ones and ones past a limit are dropped), columns of a fused buffer."""
    x, index = p.buffer("x", "bf16", ("R", 48)), p.buffer("index", "i32", ("T",))
    y, z = p.buffer("y", "bf16", ("T", 16), "w"), p.buffer("z", "bf16", (2, "R", 16), "w")
    first = p.program_id(0) * 16
    rows = index.load((first,), (16,), other=-1)
    v = x.load((0, 20), (16, 16), rows=rows, limits=(p.symbol("R") - 1, 33), other=3.0)
    y.store((first, 0), v)
    z.store((1, 0, 0), v, dims=(1, 2), rows=rows)
    column = x.load((first, 3), (16,), dims=(0,))
    z.store((0, first, 5), column, dims=(1,))
    p.grid("cdiv(T, 16)")


def scaled(a_format: str, b_format: str, m: int, n: int) -> Callable[[Program], None]:
    """A K loop of dot_scaled over [M, 128] operands of two formats; f32 out."""

    def body(p: Program) -> None:
        sides = []
        for name, rows, form in (("a", m, a_format), ("b", n, b_format)):
            dtype, pack = ("i8", 2) if form == "e2m1" else (form, 1)
            value = p.buffer(name, dtype, (rows, 128 // pack))
            scale = None if pack == 1 and form != "e4m3" else p.buffer(f"{name}s", "i8", (rows, 4))
            sides.append((name, rows, pack, value, scale))
        y = p.buffer("y", "f32", (m, n), "w")
        with p.loop(0, 2, carry=[p.zeros((m, n))]) as (k, (acc,)):
            given: dict[str, Any] = {"a_format": a_format, "b_format": b_format}
            for name, rows, pack, value, scale in sides:
                given[name] = value.load((0, k * (64 // pack)), (rows, 64 // pack))
                if scale is not None:
                    given[f"{name}_scale"] = scale.load((0, k * 2), (rows, 2))
            p.yield_(dot_scaled(given.pop("a"), given.pop("b"), acc, **given))
        y.store((0, 0), p.results()[0])
        p.grid(1)

    return body


def product(dtype: str, precision: str, m: int, n: int) -> Callable[[Program], None]:
    """y = a b^T over a ragged K, the tail masked."""

    def body(p: Program) -> None:
        a, b = p.buffer("a", dtype, ("T", 80)), p.buffer("b", dtype, (n, 80))
        y = p.buffer("y", "f32", ("T", n), "w")
        row = p.program_id(0) * m
        with p.loop(0, 80, 32, carry=[p.zeros((m, n))]) as (k, (acc,)):
            left, right = a.load((row, k), (m, 32)), b.load((0, k), (n, 32)).T
            p.yield_(dot(left, right, acc, precision=precision))
        y.store((row, 0), p.results()[0])
        p.grid(f"cdiv(T, {m})")

    return body


def _poison(shape: tuple[int, ...], dtype: Any) -> Array:
    kind = np.dtype(dtype)
    return np.full(shape, 0x7F if kind.kind in "iu" else np.nan, kind)


def maths_arguments(rng: np.random.Generator) -> dict[str, Array]:
    x = (4 * rng.standard_normal((6, 50))).astype(np.float32)
    x[0, :6] = [0.0, 0.02, -0.029, 0.031, 2.5, -3.5]
    return {"x": x, "y": _poison((16, 6, 64), np.float32)}


def integers_arguments(rng: np.random.Generator) -> dict[str, Array]:
    x = rng.integers(0, 256, 64).astype(np.uint8)
    x[:2] = [255, 128]
    counts = np.array([5, 6, -7, 8], np.int32)
    return {
        "x": x,
        "counts": counts,
        "y": _poison((8, 64), np.int32),
        "total": _poison((2,), np.int32),
    }


def casts_arguments(rng: np.random.Generator) -> dict[str, Array]:
    x = (100 * rng.standard_normal(64)).astype(np.float32)
    x[:9] = [448.0, 464.0, 500.0, -1e9, 1e-3, 2.0**-10, -1.75, 1.00390625, 1.01171875]
    outputs = {"b": BF16, "h": np.float16, "e": E4M3, "i": np.int32, "u": np.uint8}
    made = {name: _poison((64,), dtype) for name, dtype in outputs.items()}
    n = rng.integers(0, 256, 64).astype(np.uint8)
    return {"x": x, "n": n, **made, "y": _poison((4, 64), np.float32)}


def gathers_arguments(rng: np.random.Generator) -> dict[str, Array]:
    x = rng.standard_normal((23, 48)).astype(BF16)
    index = rng.permutation(23)[:20].astype(np.int32)
    index[3], index[7], index[18] = -1, 22, -5
    return {
        "x": x, "index": index, "y": _poison((20, 16), BF16), "z": _poison((2, 23, 16), BF16),
    }  # fmt: skip


def scaled_arguments(
    rng: np.random.Generator, a_format: str, b_format: str, m: int, n: int
) -> dict[str, Array]:
    made: dict[str, Array] = {}
    for name, rows, form in (("a", m, a_format), ("b", n, b_format)):
        if form == "e2m1":
            made[name] = rng.integers(0, 256, (rows, 64)).astype(np.uint8)
        else:
            kind = {"e4m3": E4M3, "bf16": BF16, "f32": np.float32}[form]
            made[name] = rng.standard_normal((rows, 128)).astype(kind)
        if form in ("e2m1", "e4m3"):
            made[f"{name}s"] = rng.integers(118, 134, (rows, 4)).astype(np.uint8)
    first = next(key for key in ("as", "bs") if key in made)
    made[first][0, 1] = 255  # NaN
    return {**made, "y": _poison((m, n), np.float32)}


def product_arguments(rng: np.random.Generator, dtype: str, n: int) -> dict[str, Array]:
    kind = {"bf16": BF16, "f32": np.float32}[dtype]
    a, b = (rng.standard_normal(shape).astype(kind) for shape in ((70, 80), (n, 80)))
    return {"a": a, "b": b, "y": _poison((70, n), np.float32)}


Case = tuple[Callable[[Program], None], Callable[[np.random.Generator], Mapping[str, Array]], float]

# name -> body, arguments, tolerance (relative Frobenius; 0 = every element the same)
SAMPLES: dict[str, Case] = {
    "maths": (maths, maths_arguments, 2e-6),
    "integers": (integers, integers_arguments, 0.0),
    "casts": (casts, casts_arguments, 0.0),
    "gathers": (gathers, gathers_arguments, 0.0),
    **{
        f"scaled-{a}-{b}-{m}": (
            scaled(a, b, m, n),
            lambda rng, a=a, b=b, m=m, n=n: scaled_arguments(rng, a, b, m, n),
            3e-3 if "f32" in (a, b) else 1e-5,
        )
        for a, b, m, n in (
            ("bf16", "e2m1", 64, 32), ("e2m1", "bf16", 64, 16), ("e4m3", "e2m1", 128, 32),
            ("e2m1", "e4m3", 128, 16), ("f32", "e2m1", 16, 64),
        )
    },
    **{
        f"product-{dtype}-{precision}": (
            product(dtype, precision, 64, 32),
            lambda rng, dtype=dtype: product_arguments(rng, dtype, 32),
            tolerance,
        )
        for dtype, precision, tolerance in (
            ("bf16", "bf16", 1e-6), ("f32", "ieee", 1e-6), ("f32", "bf16", 1e-6), ("f32", "tf32", 1e-3),
        )
    },
}  # fmt: skip
