"""Every kernel family, compiled for this machine, against its check case; and what the code may never touch."""

from __future__ import annotations

import importlib
import mmap
import pkgutil
from typing import Any

import numpy as np
import pytest

from k3compiler.check.case import Case, judge, make_case
from k3compiler.ir.tile_program import ProgramInfo, describe
from k3compiler.kernels.base import build_program
from k3compiler.package.expr import compile_exprs
from k3compiler.targets.cpu.kernels import CpuKernels, host_level
from k3compiler.targets.cpu.library import Level
from tests.kernels import programs
from tests.targets.cpu.guard_pages import guarded, unguard

pytestmark = pytest.mark.t1

ROWS: list[tuple[str, dict[str, Any], dict[str, int]]] = [
    row
    for module in pkgutil.iter_modules(programs.__path__)
    for row in importlib.import_module(f"tests.kernels.programs.{module.name}").PROGRAMS
]
# every other row on AVX2, where this machine also has AVX-512
RUNS = [(*row, "x86-64-v3" if i % 2 else host_level()) for i, row in enumerate(ROWS)]
IDS = [f"{family}-{i}" for i, (family, _, _) in enumerate(ROWS)]


def _grid(info: ProgramInfo, case: Case) -> tuple[int, ...]:
    return tuple(compile_exprs(info.grid)(info.symbols_from(case.arguments)))


@pytest.mark.parametrize(("family", "params", "sizes", "level"), RUNS, ids=IDS)
def test_kernel_on_the_cpu_agrees_and_stays_inside(
    family: str, params: dict[str, Any], sizes: dict[str, int], level: Level
) -> None:
    module = build_program(family, params, symbol="k")
    info = describe(module)
    kernels = CpuKernels([module], level)
    case = make_case(family, params, np.random.default_rng(len(family)), sizes)
    grid, mappings = _grid(info, case), list[mmap.mmap]()
    arguments = {
        name: guarded(np.ascontiguousarray(v), mappings) if isinstance(v, np.ndarray) else v
        for name, v in case.arguments.items()
    }
    kernels.run("k", arguments, grid, threads=2, grain=1)
    results = {n: v.copy() for n, v in arguments.items() if isinstance(v, np.ndarray)}
    unguard(mappings)
    for mapping, array in zip(mappings, results.values(), strict=True):
        before = np.frombuffer(mapping, np.uint8)[: len(mapping) - mmap.PAGESIZE - array.nbytes]
        assert (before == 0xA5).all(), "wrote before a buffer"
    for verdict in judge(case, results):
        assert verdict.passed, verdict
    for argument in info.arguments:
        if argument.shape is not None and argument.access == "r":
            same = (
                results[argument.name].tobytes()
                == np.ascontiguousarray(case.arguments[argument.name]).tobytes()
            )
            assert same, f"{argument.name} is read-only and was changed"
