"""Every kernel of an AMD package on the emulator, in two wave orders, against the reference."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from k3compiler.check.case import Array, Case, Verdict, judge
from k3compiler.check.emulator.alu import load_alu
from k3compiler.check.emulator.kernel import ORDERS, EmulatedKernel, WaveOrder, classes
from k3compiler.check.runner import Arguments, as_packaged, symbol_values
from k3compiler.check.verify import prepared_cases
from k3compiler.errors import K3Error
from k3compiler.package.expr import compile_exprs
from k3compiler.package.manifest import KernelRecord
from k3compiler.package.reader import Package


@dataclass(frozen=True, slots=True)
class EmulatedRow:
    """One kernel in every wave order: its worst output, and what a wave executed."""

    kernel: str
    op: str
    shapes: str
    error: float
    tolerance: float
    vgprs: int
    lds_bytes: int
    spills: int
    instructions: dict[str, int]
    passed: bool
    note: str


class EmulatorRunner:
    """Runs code objects in one wave order (a :class:`k3compiler.check.runner.KernelRunner`)."""

    def __init__(self, package: Package, order: WaveOrder) -> None:
        self.package, self.order = package, order
        self.counts: Counter[str] = Counter()

    def kernel(self, record: KernelRecord) -> EmulatedKernel:
        return EmulatedKernel(self.package.read(record.files["hsaco"]), record.symbol)

    def run(self, kernel: KernelRecord, arguments: Arguments) -> dict[str, Array]:
        """Buffers by name after one launch; a grid without programs is no launch."""
        return run_code(
            self.kernel(kernel), kernel, arguments, order=self.order, counts=self.counts
        )


def run_code(
    code: EmulatedKernel,
    kernel: KernelRecord,
    arguments: Arguments,
    *,
    order: WaveOrder = ORDERS[0],
    counts: Counter[str] | None = None,
) -> dict[str, Array]:
    """One launch of a code object as a package's record says; ``counts`` gathers what waves executed."""
    packaged = as_packaged(kernel, arguments)
    values = {k: v.copy() if isinstance(v, np.ndarray) else v for k, v in packaged.items()}
    known = symbol_values(kernel, values)
    grid = compile_exprs(kernel.grid)(known)
    if 0 not in grid:
        given = [values.get(a.name, known.get(a.name)) for a in kernel.args]
        block = (kernel.launch.num_warps * code.note.wave_size, 1, 1)
        ran = code.run(
            grid, block, given, dynamic_lds_bytes=kernel.launch.shared_bytes, order=order
        )
        if counts is not None:
            counts.update(ran.counts)
    return {k: v for k, v in values.items() if isinstance(v, np.ndarray)}


def verify_emulated(
    package: Package, *, kernels: Sequence[str] | None = None, seed: int = 0
) -> Iterator[EmulatedRow]:
    """A row per kernel, as they are done.

    Args:
        kernels: only kernels whose symbol contains one of these.

    Raises:
        K3Error: ``K3-E005`` the emulator's parts are not at hand, ``K3-R006`` the package is not for AMD.
    """
    target = package.manifest.target
    if target.kind != "hip":
        raise K3Error(
            "K3-R006",
            where=f"{package.path}",
            expected="a package for an AMD target",
            found=f"{target.name} ({target.isa})",
            hint="--on cpu runs any package's tile programs",
        )
    load_alu()
    records = package.manifest.kernels
    chosen = [k for k in records if kernels is None or any(part in k.symbol for part in kernels)]
    for kernel, case in prepared_cases(chosen, seed):
        yield _checked(package, kernel, case)


def _checked(package: Package, kernel: KernelRecord, case: Case) -> EmulatedRow:
    """A kernel in every wave order; a fault of the emulated program is a verdict, not an end."""
    runner = EmulatorRunner(package, ORDERS[0])
    note = runner.kernel(kernel).note
    verdicts: list[Verdict] = []
    for order in ORDERS:
        runner.order = order
        try:
            verdicts += judge(case, runner.run(kernel, case.arguments))
        except (MemoryError, NotImplementedError, RuntimeError) as fault:
            verdicts.append(Verdict("-", float("inf"), False, f"{type(fault).__name__}: {fault}"))
    worst = max(verdicts, key=lambda v: (not v.passed, v.error))
    return EmulatedRow(
        kernel=kernel.symbol,
        op=kernel.op,
        shapes=_shapes(kernel, case.arguments),
        error=worst.error,
        tolerance=case.tolerance,
        vgprs=note.vgprs,
        lds_bytes=max(note.lds_bytes, kernel.launch.shared_bytes),
        spills=note.vgpr_spills,
        instructions=classes(runner.counts),
        passed=all(v.passed for v in verdicts),
        note=worst.note,
    )


def _shapes(kernel: KernelRecord, arguments: Arguments) -> str:
    """Buffers' shapes, in order of the arguments."""
    arrays = [arguments[a.name] for a in kernel.args if a.kind == "buffer"]
    return " ".join("x".join(map(str, a.shape)) for a in arrays if isinstance(a, np.ndarray))
