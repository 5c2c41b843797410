"""Numbers on the CPU target: every code of every format, the functions, and sums that keep their bits."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from k3compiler.dialects.tile.builder import Program
from k3compiler.dialects.tile.ops import Tile
from k3compiler.dialects.tile.values import dot, dot_scaled, exp, exp2, log, rsqrt, tanh
from k3compiler.ir.bindings import ir
from k3compiler.targets.cpu.kernels import CpuKernels, host_level
from k3compiler.targets.cpu.library import LEVELS, Level
from tests.targets.cpu.guard_pages import guarded, unguard

pytestmark = pytest.mark.t1

Array = np.ndarray[Any, np.dtype[Any]]
HOST_LEVELS: list[Level] = [level for level in LEVELS if level <= host_level()]
NUMPY = {
    "f32": np.float32,
    "bf16": ml_dtypes.bfloat16,
    "f16": np.float16,
    "e4m3": ml_dtypes.float8_e4m3fn,
}


def _kernel(level: Level, body: Callable[[Program], None]) -> CpuKernels:
    context = ir.Context()
    context.enable_multithreading(False)
    with context, ir.Location.unknown():
        Tile.load()
        program = Program("k", "test")
        with program.body():
            body(program)
        return CpuKernels([program.module], level)


def _map(level: Level, x: Array, source: str, target: str, f: Callable[[Any], Any]) -> Array:
    """f of every element of x, through a kernel of 64 elements a program."""

    def body(p: Program) -> None:
        given, y = p.buffer("x", source, ("n",)), p.buffer("y", target, ("n",), "w")
        at = p.program_id(0) * 64
        y.store((at,), f(given.load((at,), (64,))))
        p.grid("cdiv(n, 64)")

    y = np.zeros(x.shape, NUMPY[target])
    _kernel(level, body).run("k", {"x": x, "y": y}, (-(-x.size // 64), 1, 1))
    return y


def _floats() -> Array:
    """Bit patterns of every exponent, ties and their neighbours among them."""
    rng = np.random.default_rng(1)
    top = np.arange(65536, dtype=np.uint32) << np.uint32(16)
    low = rng.choice(np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32), top.size)
    return (top | low).view(np.float32)


@pytest.mark.parametrize("level", HOST_LEVELS)
@pytest.mark.parametrize("dtype", ["bf16", "f16", "e4m3"])
def test_casts_are_exact_for_every_code(level: Level, dtype: str) -> None:
    kind, bits = (
        np.dtype(NUMPY[dtype]),
        {2: np.uint16, 1: np.uint8}[np.dtype(NUMPY[dtype]).itemsize],
    )
    codes = np.arange(256 ** np.dtype(bits).itemsize, dtype=bits).view(kind)
    wide = _map(level, codes, dtype, "f32", lambda t: t.to("f32"))
    np.testing.assert_array_equal(wide, codes.astype(np.float32))
    x = _floats()
    with np.errstate(over="ignore", invalid="ignore"):
        limited = np.clip(x, -448, 448) if dtype == "e4m3" else x
        want = limited.astype(kind)
    got = _map(level, x, "f32", dtype, lambda t: t.to(dtype))
    is_nan = np.isnan(x)
    assert np.isnan(got.astype(np.float32)[is_nan]).all()
    np.testing.assert_array_equal(got.view(bits)[~is_nan], want.view(bits)[~is_nan])


@pytest.mark.parametrize("level", HOST_LEVELS)
def test_functions_are_within_an_ulp_or_two(level: Level) -> None:
    rng = np.random.default_rng(2)
    cases: list[tuple[Callable[[Any], Any], Any, Array]] = [
        (exp, np.exp, rng.uniform(-87, 88, 20000)),
        (exp2, np.exp2, rng.uniform(-125, 127, 20000)),
        (log, np.log, np.exp(rng.uniform(-87, 88, 20000))),
        (log, np.log, rng.uniform(0.9, 1.1, 20000)),
        (tanh, np.tanh, rng.standard_normal(20000) * 3),
        (rsqrt, lambda v: 1 / np.sqrt(v), np.exp(rng.uniform(-80, 80, 20000))),
    ]
    for f, reference, x in cases:
        x32 = x.astype(np.float32)
        want = reference(x32.astype(np.float64))
        error = np.abs(_map(level, x32, "f32", "f32", f) - want) / np.abs(want)
        assert error.max() < 2.5e-7, (f.__name__, error.max(), x32[error.argmax()])
    edges = np.array([-np.inf, np.inf, np.nan, 0, -1, 2e-38, 200, -200], np.float32)
    with np.errstate(all="ignore"):
        for f, reference in ((exp, np.exp), (log, np.log), (tanh, np.tanh)):
            want = reference(edges.astype(np.float64)).astype(np.float32)
            np.testing.assert_allclose(
                _map(level, edges, "f32", "f32", f), want, rtol=3e-7, atol=1e-44
            )


@pytest.mark.parametrize("level", HOST_LEVELS)
@pytest.mark.parametrize(("m", "n"), [(1, 64), (16, 64), (32, 64), (64, 16)])
def test_every_nibble_and_every_scale(level: Level, m: int, n: int) -> None:
    """a w^T with w e2m1: rows of one-hot a pick single weights, so that nothing rounds."""
    k = 256

    def body(p: Program) -> None:
        a, w = p.buffer("a", "f32", (m, k)), p.buffer("w", "i8", (n, k // 2))
        s, y = p.buffer("s", "i8", (n, k // 32)), p.buffer("y", "f32", (m, n), "w")
        at = (0, 0)
        tiles = a.load(at, (m, k)), w.load(at, (n, k // 2))
        scale = s.load(at, (n, k // 32))
        y.store(at, dot_scaled(*tiles, a_format="f32", b_format="e2m1", b_scale=scale))
        p.grid(1)

    kernels, rng = _kernel(level, body), np.random.default_rng(m)
    w = rng.integers(0, 256, (n, k // 2), np.uint8)
    s = rng.permutation(np.arange(n * (k // 32)) % 255).astype(np.uint8).reshape(n, -1)
    half = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    table = np.concatenate([half, -half])
    weights = table[np.stack([w & 15, w >> 4], -1).reshape(n, k)]
    with np.errstate(over="ignore"):
        weights = (weights * np.repeat(np.exp2(s.astype(np.float64) - 127), 32, 1)).astype(
            np.float32
        )
    a = y = np.zeros(0, np.float32)
    for start in range(0, k, 64):
        a, y = np.zeros((m, k), np.float32), np.zeros((m, n), np.float32)
        picked = (start + 37 * np.arange(m)) % k
        a[np.arange(m), picked] = 1
        kernels.run("k", {"a": a, "w": w, "s": s, "y": y}, (1, 1, 1))
        want = weights[:, picked].T
        is_finite = np.isfinite(weights).all(1)  # 0 * inf would be NaN in the other columns
        np.testing.assert_array_equal(y[:, is_finite], want[:, is_finite])
    s[3, 1] = 255
    kernels.run("k", {"a": a, "w": w, "s": s, "y": y}, (1, 1, 1))
    assert np.isnan(y[:, 3]).all() and not np.isnan(y[:, 4]).any()


def _linear(m: int, n: int, k: int, *, columns: int, turned: bool) -> Callable[[Program], None]:
    def body(p: Program) -> None:
        x, w = p.buffer("x", "f32", ("T", columns)), p.buffer("w", "f32", (n, columns))
        y = p.buffer("y", "f32", ("T", n), "w")
        t = p.program_id(0) * m
        with p.loop(0, columns, k, carry=[p.zeros((n, m) if turned else (m, n))]) as (i, (acc,)):
            a, b = x.load((t, i), (m, k)), w.load((0, i), (n, k))
            p.yield_(dot(b, a.T, acc) if turned else dot(a, b.T, acc))
        (acc,) = p.results()
        y.store((t, 0), acc.T if turned else acc)
        p.grid(f"cdiv(T, {m})")

    return body


@pytest.mark.parametrize("level", HOST_LEVELS)
@pytest.mark.parametrize("columns", [300, 304])  # 304: whole lanes, read in place at the edge
@pytest.mark.parametrize(
    ("m", "k", "turned"),
    [
        (1, 64, False),
        (8, 128, False),
        (8, 64, False),
        (16, 256, True),
        (64, 64, False),
        (64, 64, True),
    ],
)
def test_a_row_has_the_same_bits_in_any_company(
    level: Level, m: int, k: int, turned: bool, columns: int
) -> None:
    n, kernels = 32, _kernel(level, _linear(m, 32, k, columns=columns, turned=turned))
    rng, mappings = np.random.default_rng(3), list[mmap.mmap]()
    x, w = (rng.standard_normal((r, columns)).astype(np.float32) for r in (70, n))
    edge = guarded(w, mappings)
    together = np.zeros((70, n), np.float32)
    kernels.run("k", {"x": guarded(x, mappings), "w": edge, "y": together}, (-(-70 // m), 1, 1))
    np.testing.assert_allclose(together, x.astype(np.float64) @ w.T.astype(np.float64), atol=1e-4)
    for first, count in ((0, 1), (3, 5), (9, 61), (69, 1)):
        alone = np.zeros((count, n), np.float32)
        part = guarded(x[first : first + count], mappings)
        kernels.run("k", {"x": part, "w": edge, "y": alone}, (-(-count // m), 1, 1))
        np.testing.assert_array_equal(alone, together[first : first + count])
    unguard(mappings)


def test_levels_agree_to_the_bit() -> None:
    if len(HOST_LEVELS) < 2:
        pytest.skip("this machine runs one level only")
    rng = np.random.default_rng(4)
    x, w = (rng.standard_normal((r, 304)).astype(np.float32) for r in (13, 32))
    results: list[bytes] = []
    for level in HOST_LEVELS:
        y = np.zeros((13, 32), np.float32)
        _kernel(level, _linear(8, 32, 128, columns=304, turned=False)).run(
            "k", {"x": x, "w": w, "y": y}, (2, 1, 1)
        )
        results.append(y.tobytes())
    assert results[0] == results[1]
