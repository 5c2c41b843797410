"""The tile interpreter against numpy, on programs that use every corner of docs/tile.md."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest

from k3compiler.dialects.tile.builder import Program
from k3compiler.dialects.tile.ops import Tile
from k3compiler.dialects.tile.values import dot, dot_scaled, where
from k3compiler.ir.bindings import ir
from k3compiler.ir.tile_interpreter import run_tile_program
from k3compiler.kernels.base import build_program

pytestmark = pytest.mark.t1
RNG = np.random.default_rng(7)


def build(body: Callable[[Program], None]) -> ir.Module:
    context = ir.Context()
    with context, ir.Location.unknown():
        Tile.load()
        program = Program("k", "test")
        with program.body():
            body(program)
        return ir.Module.parse(str(program.module), context)  # the text round-trips


def test_rms_norm_masks_the_ragged_row() -> None:
    params = {
        "cols": 100,
        "block": 128,
        "eps": 1e-5,
        "dtype": "bf16",
        "in_cols": 130,
        "in_offset": 20,
    }
    module = build_program("rms_norm", params, symbol="k")
    x = RNG.standard_normal((5, 130)).astype(ml_dtypes.bfloat16)
    w = RNG.standard_normal(100).astype(ml_dtypes.bfloat16)
    y = np.full((5, 100), np.nan, ml_dtypes.bfloat16)
    run_tile_program(module, {"x": x, "w": w, "y": y}, (5, 1, 1))
    v = x[:, 20:120].astype(np.float64)
    want = v / np.sqrt((v * v).mean(1, keepdims=True) + 1e-5) * w.astype(np.float64)
    np.testing.assert_allclose(y.astype(np.float64), want, rtol=8e-3)


def test_gather_limits_loop_and_scatter() -> None:
    def body(p: Program) -> None:
        x = p.buffer("x", "f32", ("T", 3, 5))
        ids = p.buffer("ids", "i32", ("N",))
        y = p.buffer("y", "f32", ("N", 8), "w")
        rows = ids.load((0,), (4,), other=-1)
        a = x.load((0, 1, 0), (4, 8), dims=(0, 2), rows=rows, limits=(p.symbol("T"), 4), other=9)
        with p.loop(0, 3, carry=[a]) as (i, (acc,)):
            p.yield_(acc + i.to("f32"))
        (acc,) = p.results()
        y.store((0, 0), where(acc > 12.0, -1.0, acc), rows=p.arange(4))
        p.grid(1)

    x = RNG.standard_normal((6, 3, 5)).astype(np.float32)
    ids = np.array([4, -1, 2], np.int32)
    y = np.full((3, 8), np.nan, np.float32)
    run_tile_program(build(body), {"x": x, "ids": ids, "y": y}, (1, 1, 1))
    want = np.full((3, 8), 9, np.float32)
    want[0, :4], want[2, :4] = x[4, 1, :4], x[2, 1, :4]
    np.testing.assert_allclose(y, want + 3)


def test_dots() -> None:
    def body(p: Program) -> None:
        a = p.buffer("a", "f32", (16, 32))
        q = p.buffer("q", "i8", (8, 16))
        s = p.buffer("s", "i8", (8, 1))
        y = p.buffer("y", "f32", (16, 8), "w")
        x = a.load((0, 0), (16, 32))
        w, scale = q.load((0, 0), (8, 16)), s.load((0, 0), (8, 1))
        acc = dot_scaled(x, w, a_format="f32", b_format="e2m1", b_scale=scale)
        y.store((0, 0), dot(x, x.T, precision="tf32").sum(1).expand(1) + acc)
        p.grid(1)

    a = RNG.standard_normal((16, 32)).astype(np.float32)
    q = RNG.integers(0, 256, (8, 16)).astype(np.uint8)
    s = np.array([[127], [126], [130], [0], [127], [127], [255], [120]], np.uint8)
    y = np.zeros((16, 8), np.float32)
    run_tile_program(build(body), {"a": a, "q": q, "s": s, "y": y}, (1, 1, 1))
    table = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    w = np.stack([q & 15, q >> 4], -1).reshape(8, 32)
    w = table[w & 7] * np.where(w & 8, -1, 1) * np.exp2(s.astype(np.float64) - 127)
    want = a @ w.T + (a @ a.T).sum(1, keepdims=True)
    assert np.isnan(y[:, 6]).all()
    keep = [0, 1, 2, 3, 4, 5, 7]
    np.testing.assert_allclose(y[:, keep], want[:, keep], rtol=2e-3, atol=2e-2)
