"""A CPU package's kernels in a process of their own: code that ends that process is a finding, not an end."""

from __future__ import annotations

import multiprocessing
import signal
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

from k3compiler.check.runner import DeviceRunner
from k3compiler.check.verify import VerifyRow, judge_kernel, prepared_cases
from k3compiler.errors import K3Error
from k3compiler.package.manifest import KernelRecord
from k3compiler.package.reader import Package
from k3compiler.runtime.device.cpu import CpuDevice

Answer = list[VerifyRow] | K3Error


def verify_isolated(
    package: Package, *, level: str, kernels: Sequence[str] | None = None, seed: int = 0
) -> list[VerifyRow]:
    """As ``verify_package``, on one instruction level of the package; every note names the level.

    A kernel that ends its process has one row, which did not pass; the next one gets a new process.

    Args:
        level: one of ``usable_levels(package)``.

    Raises:
        K3Error: what the child met, e.g. K3-R009 a library that cannot be loaded.
    """
    left = deque(
        k
        for k in package.manifest.kernels
        if kernels is None or any(p in k.symbol for p in kernels)
    )
    rows: list[VerifyRow] = []
    while left:
        child = _Child(package.path, level, [k.symbol for k in left], seed)
        try:
            while left and (answer := child.receive()) is not None:
                rows += [replace(row, note=f"{level} {row.note}".strip()) for row in answer]
                left.popleft()
        finally:
            how = child.end()
        if left:
            rows.append(_ended(left.popleft(), f"{level} {how}"))
    return rows


def _ended(kernel: KernelRecord, how: str) -> VerifyRow:
    """The row of a kernel that wrote nothing because its process ended."""
    return VerifyRow(
        kernel.symbol, kernel.op, len(kernel.layers), "-", float("inf"), 0.0, False, how
    )


class _Child:
    """A process that checks kernels one after the other and sends the rows of each."""

    def __init__(self, path: Path, level: str, symbols: list[str], seed: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._answers, theirs = context.Pipe(duplex=False)
        arguments = (theirs, path, level, symbols, seed)
        self._process = context.Process(target=_check, args=arguments, daemon=True)
        self._process.start()
        theirs.close()

    def receive(self) -> list[VerifyRow] | None:
        """The next kernel's rows; None where the process ended."""
        try:
            answer: Answer = self._answers.recv()
        except EOFError:
            return None
        if isinstance(answer, K3Error):
            raise answer
        return answer

    def end(self) -> str:
        """Stops the process; says how it ended."""
        self._answers.close()
        self._process.join()
        code = self._process.exitcode or 0
        assert code <= 0, (
            f"the checking process failed with exit code {code}; its traceback is above"
        )
        return f"ended by {signal.Signals(-code).name}" if code else ""


def _check(answers: Connection, path: Path, level: str, symbols: list[str], seed: int) -> None:
    """The child: one answer a kernel, in order."""
    try:
        package = Package.open(path)
        device = CpuDevice(num_threads=1, level=level)
        device.load(package)
        runner = DeviceRunner(device)
        chosen = [k for k in package.manifest.kernels if k.symbol in symbols]
        for kernel, case in prepared_cases(chosen, seed):
            answers.send(judge_kernel(kernel, case, runner))
    except K3Error as error:
        answers.send(error)
