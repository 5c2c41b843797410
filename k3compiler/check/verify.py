"""Every kernel of a package against the reference, on fresh random inputs."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from k3compiler.check.case import Verdict, judge, make_case
from k3compiler.check.runner import KernelRunner
from k3compiler.package.manifest import KernelRecord
from k3compiler.package.reader import Package


@dataclass(frozen=True, slots=True)
class VerifyRow:
    """One output of one kernel: its error (relative Frobenius, or wrong elements) and the bound."""

    kernel: str
    op: str
    layers: int
    output: str
    error: float
    tolerance: float
    passed: bool
    note: str


def verify_package(
    package: Package,
    *,
    runner: KernelRunner,
    kernels: Sequence[str] | None = None,
    seed: int = 0,
) -> list[VerifyRow]:
    """Runs each kernel once through ``runner`` and judges what it wrote.

    Args:
        kernels: only kernels whose symbol contains one of these.
        seed: of the inputs; each kernel draws its own stream.
    """
    rows: list[VerifyRow] = []
    for kernel in package.manifest.kernels:
        if kernels is None or any(part in kernel.symbol for part in kernels):
            rows += verify_kernel(kernel, runner, seed)
    return rows


def verify_kernel(kernel: KernelRecord, runner: KernelRunner, seed: int) -> list[VerifyRow]:
    """One kernel on fresh inputs; a row per output."""
    rng = np.random.default_rng([seed, zlib.crc32(kernel.symbol.encode())])
    case = make_case(kernel.family, kernel.params, rng)
    verdicts = judge(case, runner.run(kernel, case.arguments))
    return [_row(kernel, case.tolerance, verdict) for verdict in verdicts]


def _row(kernel: KernelRecord, tolerance: float, verdict: Verdict) -> VerifyRow:
    return VerifyRow(
        kernel.symbol, kernel.op, len(kernel.layers), verdict.output, verdict.error, tolerance,
        verdict.passed, verdict.note,
    )
