"""Random tile programs, compiled and interpreted: what is lazy, stored, or updated in place never shows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from k3compiler.dialects.tile.builder import Program
from k3compiler.dialects.tile.ops import Tile as TileDialect
from k3compiler.dialects.tile.values import Tile, dot, exp, maximum, tanh, where
from k3compiler.ir.bindings import ir
from k3compiler.ir.tile_interpreter import run_tile_program
from k3compiler.targets.cpu.kernels import CpuKernels, host_level
from k3compiler.targets.cpu.library import Level

pytestmark = pytest.mark.t1

M, N = 8, 16
ROWS, COLUMNS = 21, 37


class _Writer:
    """Writes one random program over tiles ``[8, 16]``."""

    def __init__(self, p: Program, rng: np.random.Generator) -> None:
        self.p, self.rng = p, rng
        self.x = p.buffer("x", "f32", ("R", COLUMNS))
        self.h = p.buffer("h", "bf16", ("R", COLUMNS))
        self.idx = p.buffer("idx", "i32", ("L",))
        self.state = p.buffer("state", "f32", (6, M, N), "rw")
        self.y = p.buffer("y", "f32", ("R", COLUMNS), "rw")
        self.i, self.j = p.program_id(0) * M, p.program_id(1) * N

    def pick(self, pool: list[Tile]) -> Tile:
        return pool[int(self.rng.integers(len(pool)))]

    def load(self) -> Tile:
        kind, at = int(self.rng.integers(5)), (self.i, self.j)
        match kind:
            case 0:
                return self.x.load(at, (M, N))
            case 1:
                return self.h.load(at, (M, N), limits=(self.i + 5, self.j + 13)).to("f32")
            case 2:
                rows = self.idx.load((self.i,), (M,), other=-1.0)
                return self.x.load((0, self.j), (M, N), rows=rows)
            case 3:
                return self.x.load((self.i - 3, self.j), (M, N), other=0.25)
            case _:
                return self.x.load((self.i, 3), (M,), dims=[0]).expand(1) + self.p.zeros((M, N))

    def step(self, pool: list[Tile]) -> Tile:
        a, b = self.pick(pool), self.pick(pool)
        choices: list[Callable[[], Tile]] = [
            lambda: a + b,
            lambda: a * 0.5 - b,
            lambda: tanh(a) * b,
            lambda: exp(-maximum(a, -1.0) * maximum(a, -1.0)),
            lambda: where(a > b, a, b * 0.25),
            lambda: a - a.max(1).expand(1),
            lambda: b * 0.5 + (a.sum(0) * 0.125).expand(0),
            lambda: tanh(dot(tanh(a), tanh(b).T)).sum(1).expand(1) * 0.25 + b,
            lambda: dot(tanh(dot(tanh(a), tanh(b).T)), b * 0.25, a),
            lambda: tanh(a).cumsum(1) * 0.25,
            lambda: tanh(a).cumsum(0) * 0.25 + b,
            lambda: a.reshape(N, M).T,
            lambda: a.to("bf16").to("f32"),
            lambda: where((self.p.arange(M) % 3).eq(1).expand(1), a, b),
            lambda: a + self.load(),
        ]
        return choices[int(self.rng.integers(len(choices)))]()

    def grow(self, pool: list[Tile], steps: int) -> list[Tile]:
        for _ in range(steps):
            pool = [*pool, self.step(pool)]
        return pool

    def write(self) -> None:
        p, rng = self.p, self.rng
        pool = self.grow([self.load(), self.load()], 3)
        carry = [self.pick(pool) for _ in range(3)]
        with p.loop(0, int(rng.integers(0, 4)), carry=[*carry, p.constant(0.5, "f32")]) as (
            k,
            held,
        ):
            *tiles, scalar = held
            inner = self.grow([*tiles, pool[-1]], 4)
            if rng.integers(2):
                slot = k % 6
                old = self.state.load((slot, 0, 0), (M, N))
                self.state.store((slot, 0, 0), tanh(inner[-1] + old) * 0.5)
                inner.append(self.state.load((slot, 0, 0), (M, N)) + old * scalar)
            p.yield_(*[self.pick([*inner[::-1][:4], *tiles]) for _ in tiles], scalar * 0.5)
        *tiles, scalar = p.results()
        out = self.grow([*tiles, *pool[-2:]], 2)[-1] + tiles[0] * scalar
        with p.when(self.i < ROWS - 2):
            self.y.store((self.i, self.j), tanh(out))
        p.grid(f"cdiv(R, {M})", f"cdiv({COLUMNS}, {N})")


def _module(seed: int) -> ir.Module:
    context = ir.Context()
    context.enable_multithreading(False)
    with context, ir.Location.unknown():
        TileDialect.load()
        program = Program("k", "random")
        with program.body():
            _Writer(program, np.random.default_rng(seed)).write()
        return program.module


def _arguments(seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((ROWS, COLUMNS)).astype(np.float32)
    kind = np.dtype(ml_dtypes.bfloat16)
    return {
        "x": x,
        "h": rng.standard_normal((ROWS, COLUMNS)).astype(kind),
        "idx": rng.integers(-2, ROWS + 3, ROWS).astype(np.int32),
        "state": rng.standard_normal((6, M, N)).astype(np.float32),
        "y": np.full((ROWS, COLUMNS), 7, np.float32),
    }


def check_seed(seed: int, level: Level) -> None:
    """One random program, compiled for ``level``, against the interpreter."""
    module, grid = _module(seed), (-(-ROWS // M), -(-COLUMNS // N), 1)
    want, got = _arguments(seed), _arguments(seed)
    run_tile_program(module, want, grid)
    CpuKernels([module], level).run("k", got, grid)
    for name in ("y", "state"):
        np.testing.assert_allclose(
            got[name], want[name], rtol=2e-3, atol=2e-4, err_msg=f"seed {seed}"
        )


@pytest.mark.parametrize("seed", range(16))
def test_random_program(seed: int) -> None:
    check_seed(seed, "x86-64-v3" if seed % 2 else host_level())
