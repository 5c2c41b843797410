"""Every kernel family, compiled for this machine, against its check case; and what the code may never touch."""

from __future__ import annotations

import ctypes
import importlib
import mmap
import pkgutil
from typing import Any

import numpy as np
import pytest

import tests.kernels.programs as programs
from k3compiler.check.case import Case, judge, make_case
from k3compiler.ir.tile_program import ProgramInfo, describe
from k3compiler.kernels.base import build_program
from k3compiler.package.expr import compile_exprs
from k3compiler.targets.cpu.kernels import CpuKernels

pytestmark = pytest.mark.t1

ROWS: list[tuple[str, dict[str, Any], dict[str, int]]] = [
    row
    for module in pkgutil.iter_modules(programs.__path__)
    for row in importlib.import_module(f"tests.kernels.programs.{module.name}").PROGRAMS
]
IDS = [f"{family}-{i}" for i, (family, _, _) in enumerate(ROWS)]


def _guarded(array: np.ndarray, mappings: list[mmap.mmap]) -> np.ndarray:
    """A copy of ``array`` that ends where an unreadable page starts."""
    size = max(array.nbytes, 1)
    whole = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
    mapping = mmap.mmap(-1, whole + 2 * mmap.PAGESIZE)
    mappings.append(mapping)
    start = np.frombuffer(mapping, np.uint8).ctypes.data
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    for page in (start, start + mmap.PAGESIZE + whole):
        assert protect(page, mmap.PAGESIZE, 0) == 0
    first = mmap.PAGESIZE + whole - array.nbytes
    view = np.frombuffer(mapping, np.uint8, array.nbytes, first).view(array.dtype).reshape(array.shape)
    view[...] = array
    return view


def _unguard(mappings: list[mmap.mmap]) -> None:
    protect = ctypes.CDLL(None).mprotect
    protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    for mapping in mappings:
        start = np.frombuffer(mapping, np.uint8).ctypes.data
        protect(start, len(mapping), 3)


def _grid(info: ProgramInfo, case: Case) -> tuple[int, ...]:
    return tuple(compile_exprs(info.grid)(info.symbols_from(case.arguments)))


@pytest.mark.parametrize(("family", "params", "sizes"), ROWS, ids=IDS)
def test_kernel_on_the_cpu_agrees_and_stays_inside(family, params, sizes):
    module = build_program(family, params, symbol="k")
    info = describe(module)
    kernels = CpuKernels([module])
    case = make_case(family, params, np.random.default_rng(len(family)), sizes)
    grid, mappings = _grid(info, case), list[mmap.mmap]()
    arguments = {
        name: _guarded(np.ascontiguousarray(v), mappings) if isinstance(v, np.ndarray) else v
        for name, v in case.arguments.items()
    }
    kernels.run("k", arguments, grid, threads=2, grain=1)
    results = {n: v.copy() for n, v in arguments.items() if isinstance(v, np.ndarray)}
    _unguard(mappings)
    for verdict in judge(case, results):
        assert verdict.passed, verdict
    for argument in info.arguments:
        if argument.shape is not None and argument.access == "r":
            same = results[argument.name].tobytes() == np.ascontiguousarray(case.arguments[argument.name]).tobytes()
            assert same, f"{argument.name} is read-only and was changed"
