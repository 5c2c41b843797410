"""Every kernel of a package against its floor, with the arguments its plan gives it.

The layers that hold each kernel's first launch run once on random weights and tokens, so that every index table is a
real one; then each kernel is launched again and again on those arguments. Weights of one shape share memory and are
rotated through copies larger than the last cache, unless one of them is larger by itself.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any

import numpy as np

from k3compiler.check.case import MEMORY, Array
from k3compiler.check.rates import Rates, describe_device, measure_rates
from k3compiler.package.expr import evaluate
from k3compiler.package.manifest import KernelRecord, LaunchStep, Phase, Plan
from k3compiler.package.pitches import dense_pitches
from k3compiler.package.plan_steps import some_steps
from k3compiler.package.reader import Package
from k3compiler.runtime.decode_seats import build_decode
from k3compiler.runtime.device.base import Device, TensorRef
from k3compiler.runtime.device.launch_table import LaunchTable
from k3compiler.runtime.device.select import open_device
from k3compiler.runtime.plan_runner import PlanRunner
from k3compiler.runtime.state import state_records
from k3compiler.runtime.step import SeqChunk, StepInputs, build_prefill

ROTATED_BYTES = 192 << 20  # more than three times the last cache of a large GPU
MAX_COPIES = 24
LAUNCHES = 24  # in one timed run
REPEATS = 7


@dataclass(frozen=True, slots=True)
class Workload:
    """The step that is timed: sequences, new tokens of each, cached tokens of each."""

    sequences: int
    tokens: int
    context: int


WORKLOADS: Mapping[str, Mapping[Phase, Workload]] = {
    "cpu": {"prefill": Workload(1, 256, 0), "decode": Workload(1, 1, 512)},
    "cuda": {"prefill": Workload(1, 2048, 0), "decode": Workload(16, 1, 4096)},
}


@dataclass(frozen=True, slots=True)
class BenchRow:
    """One kernel in one phase: µs a launch, the floor at the rates of this run, and how they compare."""

    phase: str
    kernel: str
    op: str
    launches: int
    us: float
    floor_us: float
    ratio: float
    gb_per_s: float
    tflop_per_s: float


@dataclass(frozen=True)
class BenchResult:
    """The table and what it was measured on."""

    chip: str
    rows: list[BenchRow]
    rates: Rates
    facts: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        return {
            "chip": self.chip,
            "facts": self.facts,
            "rates": asdict(self.rates),
            "rows": [asdict(row) for row in self.rows],
        }


def bench_package(
    package: Package,
    *,
    kernels: Sequence[str] | None = None,
    seed: int = 0,
    device: Device | None = None,
) -> BenchResult:
    """Times every kernel on this machine's device.

    Args:
        kernels: only kernels whose symbol contains one of these.
        seed: of weights and tokens.
    """
    opened = device or open_device(None, package.manifest.target)
    opened.load(package)
    rates = measure_rates(opened)
    rng = np.random.default_rng(seed)
    rows: list[BenchRow] = []
    for phase, workload in WORKLOADS[package.manifest.target.kind].items():
        bench = _PhaseBench(package, opened, phase, workload, rng)
        wanted = [
            step
            for step in bench.first_launches()
            if kernels is None or any(part in step.launch for part in kernels)
        ]
        rows += [bench.row(step, rates) for step in wanted]
    facts = {
        "date": datetime.date.today().isoformat(),
        "package": package.manifest.digest,
        "kernels": {k.symbol: kernel_digest(package, k) for k in package.manifest.kernels},
        "workloads": {p: asdict(w) for p, w in WORKLOADS[package.manifest.target.kind].items()},
        **describe_device(opened),
    }
    return BenchResult(str(facts["chip"]), rows, rates, facts)


def kernel_digest(package: Package, kernel: KernelRecord) -> str:
    """The digest of what was timed: the kernel's own binary, or the library that holds it."""
    files = package.manifest.files
    binary = kernel.files.get("cubin") or kernel.files.get("hsaco")
    return (
        files[binary] if binary else ",".join(files[p] for p in package.manifest.libraries.values())
    )


class _PhaseBench:
    """One phase's plan cut to the layers that matter, run once, its launches at hand."""

    def __init__(
        self,
        package: Package,
        device: Device,
        phase: Phase,
        load: Workload,
        rng: np.random.Generator,
    ) -> None:
        self.package, self.device, self.phase, self.rng = package, device, phase, rng
        self.plan = _cut(package.plan(phase))
        self.kernels = {k.symbol: k for k in package.manifest.kernels}
        self.step, self.constants = self._inputs(load)
        self.copies: dict[str, list[TensorRef]] = {}
        self.fixed = self._weights() | self._states()
        self.runner = PlanRunner(device, self.plan, self.kernels, self.fixed, self.constants)
        self.runner.run(self.step)

    def _inputs(self, load: Workload) -> tuple[StepInputs, dict[str, int]]:
        manifest = self.package.manifest
        page, vocab = manifest.page_tokens, manifest.config.vocab_size
        columns = -(-(load.context + load.tokens) // page)
        chunks = [
            SeqChunk(
                self.rng.integers(0, vocab, load.tokens).tolist(),
                load.context,
                1 + s,
                range(1 + s * columns, 1 + (s + 1) * columns),
            )
            for s in range(load.sequences)
        ]
        constants = {"PAGES": 1 + load.sequences * columns, "SLOTS": 1 + load.sequences, "rank": 0}
        constants |= dense_pitches(manifest)
        if self.phase == "decode":
            rows = load.sequences
            step = build_decode(chunks, page_columns=columns, page_tokens=page, num_rows=rows)
        else:
            step = build_prefill(
                chunks, page_columns=columns, page_tokens=page, chunk_tokens=manifest.chunk_tokens
            )
        return step, constants

    def _weights(self) -> dict[str, TensorRef]:
        """Random parameters; one array (and its copies) for all of one dtype and shape."""
        by_form: dict[tuple[str, tuple[int, ...]], list[TensorRef]] = {}
        used = {a for s in self.plan.steps for a in s.args}
        refs: dict[str, TensorRef] = {}
        for param in self.package.weights.params:
            name = f"w:{param.name}"
            if name not in used:
                continue
            form = (param.dtype, param.shape)
            if form not in by_form:
                by_form[form] = self._random_copies(*form)
            refs[name] = by_form[form][0]
            self.copies[name] = by_form[form]
        return refs

    def _random_copies(self, dtype: str, shape: tuple[int, ...]) -> list[TensorRef]:
        size = int(np.prod(shape)) * MEMORY[dtype].itemsize
        count = min(MAX_COPIES, max(1, -(-ROTATED_BYTES // max(size, 1)))) if size > 1 << 16 else 1
        refs = [TensorRef(self.device.allocate(size), dtype, shape) for _ in range(count)]
        block = _random_block(dtype, self.rng)
        for ref in refs:
            self.device.write(ref, lambda out: _tile(out, block))
        return refs

    def _states(self) -> dict[str, TensorRef]:
        records = state_records(self.package.manifest, [self.plan])
        refs: dict[str, TensorRef] = {}
        for name, record in records.items():
            shape = tuple(evaluate(n, self.constants) for n in record.shape)
            ref = TensorRef(
                self.device.allocate(record.num_bytes(self.constants)), record.dtype, shape
            )
            block = _random_block(record.dtype, self.rng)
            self.device.write(ref, lambda out, block=block: _tile(out, block))
            refs[name] = ref
        return refs

    def first_launches(self) -> list[LaunchStep]:
        """The first launch of every kernel of the phase."""
        found: dict[str, LaunchStep] = {}
        for step in self.plan.steps:
            if isinstance(step, LaunchStep):
                found.setdefault(step.launch, step)
        return list(found.values())

    def row(self, step: LaunchStep, rates: Rates) -> BenchRow:
        seconds = self._seconds(step)
        kernel = self.kernels[step.launch]
        symbols = self._kernel_symbols(kernel, step)
        moved, done = evaluate(kernel.floor.bytes, symbols), evaluate(kernel.floor.flops, symbols)
        floor = max(moved / rates.bytes_per_s, done / rates.flops)
        layers = sum(
            s.launch == step.launch
            for s in self.package.plan(self.phase).steps
            if isinstance(s, LaunchStep)
        )
        return BenchRow(
            self.phase,
            kernel.symbol,
            kernel.op,
            layers,
            round(seconds * 1e6, 2),
            round(floor * 1e6, 2),
            round(seconds / floor, 2) if floor else 0.0,
            round(moved / seconds / 1e9, 1),
            round(done / seconds / 1e12, 3),
        )

    def _kernel_symbols(self, kernel: KernelRecord, step: LaunchStep) -> dict[str, int]:
        """The kernel's own symbols: what the launch passes for its scalars."""
        plan_symbols = {**self.constants, **self.step.symbols}
        scalars = {
            arg.name: evaluate(text, plan_symbols)
            for arg, text in zip(kernel.args, step.args, strict=True)
            if arg.kind == "scalar" and arg.dtype == "i32"
        }
        return plan_symbols | scalars

    def _seconds(self, step: LaunchStep) -> float:
        """Median seconds of one launch among LAUNCHES in a row."""
        table, pointers = self._table(step)
        table.bind(np.array(pointers, np.int64))
        table.patch({**self.constants, **self.step.symbols})
        program, samples = self.device.program(table), list[float]()
        for index in range(REPEATS + 2):
            self.device.synchronize()
            start = time.perf_counter()
            program.run([], (0,))
            self.device.synchronize()
            if index > 1:  # the first runs warm up, and record where the device can replay
                samples.append((time.perf_counter() - start) / LAUNCHES)
        return median(samples)

    def _table(self, step: LaunchStep) -> tuple[LaunchTable, list[int]]:
        """LAUNCHES copies of a launch, each with the next copy of its weights."""
        kernel = self.kernels[step.launch]
        ids: dict[str, int] = {}
        pointers: list[int] = []
        copies: list[LaunchStep] = []
        for index in range(LAUNCHES):
            args: list[str] = []
            for arg, text in zip(kernel.args, step.args, strict=True):
                if arg.kind == "scalar":
                    args.append(text)
                    continue
                choices = self.copies.get(text, [])
                turn = index % max(len(choices), 1)
                name = f"{text}#{turn}"
                if name not in ids:
                    ids[name] = len(pointers)
                    place = choices[turn].buffer.pointer if choices else self.runner.pointer(text)
                    pointers.append(place)
                args.append(name)
            copies.append(replace(step, args=tuple(args), stream=0, waits=()))
        hidden = self.device.hidden_slots
        return LaunchTable(copies, {kernel.symbol: kernel}, ids, hidden_slots=hidden), pointers


def _cut(plan: Plan) -> Plan:
    """The layers that hold some kernel's first launch; every buffer in memory of its own."""
    seen: set[str] = set()
    layers: set[int | None] = {None}
    for step in plan.steps:
        if isinstance(step, LaunchStep) and step.launch not in seen:
            seen.add(step.launch)
            layers.add(step.layer)
    steps = some_steps(plan.steps, lambda s: s.layer in layers)
    used = {a for s in steps for a in s.args}
    buffers = tuple(
        replace(b, storage=None) for b in plan.buffers if b.name in used and b.kind != "state"
    )
    states = tuple(b for b in plan.buffers if b.kind == "state")
    return replace(plan, steps=steps, buffers=(*buffers, *states), storage=())


def _random_block(dtype: str, rng: np.random.Generator, size: int = 1 << 20) -> Array:
    """A block of values that a model could hold (bytes: small powers of two as scales)."""
    if dtype == "i8":
        return rng.integers(114, 126, size).astype(np.uint8)
    return (0.02 * rng.standard_normal(size)).astype(MEMORY[dtype])


def _tile(out: Array, block: Array) -> None:
    flat = out.reshape(-1)
    for start in range(0, len(flat), len(block)):
        part = flat[start : start + len(block)]
        part[:] = block[: len(part)]
