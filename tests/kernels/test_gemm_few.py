"""A token's row of ``gemm_few`` has the same bits in whatever company it comes, as compiled code sums it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from k3compiler.check.case import make_case
from k3compiler.ir.tile_program import describe
from k3compiler.kernels.base import build_program
from k3compiler.package.expr import compile_exprs
from k3compiler.targets.cpu.kernels import CpuKernels, host_level

pytestmark = pytest.mark.t1

SHAPE = {"N": 30, "K": 136, "in_cols": 136, "dtype": "bf16", "parts": 4, "block_k": 64}


def rows(params: dict[str, Any], arguments: dict[str, Any], picked: list[int]) -> Any:
    """y of some rows of x, in that order."""
    module = build_program("gemm_few", params, symbol="k")
    info = describe(module)
    given = dict(arguments, x=np.ascontiguousarray(arguments["x"][picked]))
    given["y"] = np.zeros_like(arguments["y"][picked])
    grid = tuple(compile_exprs(info.grid)(info.symbols_from(given)))
    CpuKernels([module], host_level()).run("k", given, grid, threads=1, grain=1)
    return given["y"]


@pytest.mark.parametrize("block_n", [8, 32])
@pytest.mark.parametrize("epilogue", ["none", "silu"])
def test_a_row_does_not_depend_on_its_neighbours(block_n: int, epilogue: str) -> None:
    params = {**SHAPE, "tokens": 8, "block_n": block_n, "epilogue": epilogue}
    case = make_case("gemm_few", params, np.random.default_rng(3), {"T": 8})
    together = rows(params, dict(case.arguments), list(range(8)))
    for picked in ([0, 1], [7, 2, 5], [6]):
        assert rows(params, dict(case.arguments), picked).tobytes() == together[picked].tobytes()
