"""Every kernel of a package against the reference, on fresh random inputs."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from k3compiler.check.case import Case, Verdict, judge, make_case
from k3compiler.check.runner import KernelRunner
from k3compiler.package.manifest import KernelRecord
from k3compiler.package.reader import Package

MOST_AHEAD = 8  # cases in memory at once; one of K3's expert kernels takes several GB


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
    chosen = [
        kernel
        for kernel in package.manifest.kernels
        if kernels is None or any(part in kernel.symbol for part in kernels)
    ]
    rows: list[VerifyRow] = []
    for kernel, case in prepared_cases(chosen, seed):
        rows += judge_kernel(kernel, case, runner)
    return rows


def prepared_cases(
    kernels: Sequence[KernelRecord], seed: int
) -> Iterator[tuple[KernelRecord, Case]]:
    """Cases in order, a few of them made ahead: the reference is slow at real sizes, and releases the GIL."""
    ahead = max(1, min(MOST_AHEAD, (os.cpu_count() or 1) - 1))
    with ThreadPoolExecutor(ahead) as pool:
        waiting = [(k, pool.submit(kernel_case, k, seed)) for k in kernels[:ahead]]
        for index in range(len(kernels)):
            kernel, future = waiting.pop(0)
            if index + ahead < len(kernels):
                following = kernels[index + ahead]
                waiting.append((following, pool.submit(kernel_case, following, seed)))
            yield kernel, future.result()


def kernel_case(kernel: KernelRecord, seed: int) -> Case:
    """Fresh inputs for a kernel; each kernel draws its own stream."""
    rng = np.random.default_rng([seed, zlib.crc32(kernel.symbol.encode())])
    return make_case(kernel.family, kernel.params, rng)


def judge_kernel(kernel: KernelRecord, case: Case, runner: KernelRunner) -> list[VerifyRow]:
    """One launch; a row per output."""
    verdicts = judge(case, runner.run(kernel, case.arguments))
    return [_row(kernel, case.tolerance, verdict) for verdict in verdicts]


def _row(kernel: KernelRecord, tolerance: float, verdict: Verdict) -> VerifyRow:
    return VerifyRow(
        kernel.symbol,
        kernel.op,
        len(kernel.layers),
        verdict.output,
        verdict.error,
        tolerance,
        verdict.passed,
        verdict.note,
    )
