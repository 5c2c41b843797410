"""Every kernel of an AMD package on the emulator, in two wave orders, against the reference."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from k3compiler.check.case import Array, Case, Verdict, judge
from k3compiler.check.emulator.alu import load_alu
from k3compiler.check.emulator.kernel import ORDERS, EmulatedKernel, WaveOrder, classes
from k3compiler.check.runner import Arguments, as_packaged, symbol_values
from k3compiler.check.verify import kernel_case
from k3compiler.errors import K3Error
from k3compiler.package.expr import compile_exprs
from k3compiler.package.manifest import KernelRecord
from k3compiler.package.reader import Package

_FEW_EXPERTS = 8


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

    def __init__(
        self, package: Package, order: WaveOrder, most_programs: int | None = None
    ) -> None:
        self.package, self.order, self.most_programs = package, order, most_programs
        self.counts: Counter[str] = Counter()

    def kernel(self, record: KernelRecord) -> EmulatedKernel:
        return EmulatedKernel(self.package.read(record.files["hsaco"]), record.symbol)

    def run(self, kernel: KernelRecord, arguments: Arguments) -> dict[str, Array]:
        """Buffers by name after one launch; a grid without programs is no launch."""
        return run_code(
            self.kernel(kernel),
            kernel,
            arguments,
            order=self.order,
            counts=self.counts,
            most_programs=self.most_programs,
        )


def run_code(
    code: EmulatedKernel,
    kernel: KernelRecord,
    arguments: Arguments,
    *,
    order: WaveOrder = ORDERS[0],
    counts: Counter[str] | None = None,
    most_programs: int | None = None,
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
            grid,
            block,
            given,
            dynamic_lds_bytes=kernel.launch.shared_bytes,
            order=order,
            most_programs=most_programs,
        )
        if counts is not None:
            counts.update(ran.counts)
    return {k: v for k, v in values.items() if isinstance(v, np.ndarray)}


def verify_emulated(
    package: Package,
    *,
    kernels: Sequence[str] | None = None,
    seed: int = 0,
    most_programs: int | None = None,
) -> Iterator[EmulatedRow]:
    """A row per kernel, as they are done.

    Args:
        kernels: only kernels whose symbol contains one of these.
        most_programs: run only that many programs of a grid, and judge what they wrote (real models are large).

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
    for kernel in package.manifest.kernels:
        if kernels is None or any(part in kernel.symbol for part in kernels):
            case = kernel_case(kernel if most_programs is None else _few_experts(kernel), seed)
            yield _checked(package, kernel, case, most_programs)


def _few_experts(kernel: KernelRecord) -> KernelRecord:
    """A record whose case stacks few experts: a kernel reads those that its blocks name, whatever their number."""
    if kernel.family not in ("moe_gate_up", "moe_down"):
        return kernel
    few = min(kernel.params["experts"], _FEW_EXPERTS)
    return replace(kernel, params={**kernel.params, "experts": few})


def _checked(
    package: Package, kernel: KernelRecord, case: Case, most_programs: int | None
) -> EmulatedRow:
    """A kernel in every wave order; a fault of the emulated program is a verdict, not an end."""
    runner = EmulatorRunner(package, ORDERS[0], most_programs)
    note = runner.kernel(kernel).note
    verdicts: list[Verdict] = []
    for order in ORDERS:
        runner.order = order
        try:
            results = runner.run(kernel, case.arguments)
            judged = case if most_programs is None else _written_part(case, results)
            verdicts += judge(judged, results)
        except (MemoryError, NotImplementedError, RuntimeError) as fault:
            words = f"{type(fault).__name__}: {fault}"
            verdicts.append(Verdict("-", float("inf"), False, words))
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


def _written_part(case: Case, results: Mapping[str, Array]) -> Case:
    """The case restricted to elements that the launch changed.

    Raises:
        RuntimeError: it changed nothing that counts.
    """
    where: dict[str, Array] = {}
    for name, want in case.expected.items():
        before, after = (np.ascontiguousarray(a) for a in (case.arguments[name], results[name]))
        as_bytes = (*want.shape, before.dtype.itemsize)
        changed = before.view(np.uint8).reshape(as_bytes) != after.view(np.uint8).reshape(as_bytes)
        where[name] = changed.any(-1) & case.where.get(name, True)
    if not any(mask.any() for mask in where.values()):
        raise RuntimeError("the programs that ran wrote nothing")
    return replace(case, where=where)


def _shapes(kernel: KernelRecord, arguments: Arguments) -> str:
    """Buffers' shapes, in order of the arguments."""
    arrays = [arguments[a.name] for a in kernel.args if a.kind == "buffer"]
    return " ".join("x".join(map(str, a.shape)) for a in arrays if isinstance(a, np.ndarray))
