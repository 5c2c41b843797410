"""Every kernel family on the numpy tile interpreter against the reference, at small ragged shapes.

One line of PROGRAMS per family and variant: family, parameters, symbol values.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

import numpy as np
import pytest

from k3compiler.check.case import judge, make_case
from k3compiler.ir.tile_interpreter import run_tile_program
from k3compiler.ir.tile_program import describe
from k3compiler.kernels.base import build_program
from k3compiler.package.expr import compile_exprs
from tests.kernels import programs

pytestmark = pytest.mark.t1

PROGRAMS: list[tuple[str, dict[str, Any], dict[str, int]]] = [
    row
    for module in pkgutil.iter_modules(programs.__path__)
    for row in importlib.import_module(f"tests.kernels.programs.{module.name}").PROGRAMS
]
IDS = [f"{family}-{i}" for i, (family, _, _) in enumerate(PROGRAMS)]


@pytest.mark.parametrize(("family", "params", "sizes"), PROGRAMS, ids=IDS)
def test_kernel_agrees_with_the_reference(
    family: str, params: dict[str, Any], sizes: dict[str, int]
) -> None:
    module = build_program(family, params, symbol="k")
    case = make_case(family, params, np.random.default_rng(len(family)), sizes)
    info = describe(module)
    grid = compile_exprs(info.grid)(info.symbols_from(case.arguments))
    run_tile_program(module, case.arguments, grid)
    for verdict in judge(case, case.arguments):
        assert verdict.passed, verdict
