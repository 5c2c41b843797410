"""``k3c bench --random-weights``: a rank's decode step as the runtime runs it, against the bytes it must move.

The rank runs alone: sums over ranks are left out (a partial sum stands for the whole), gathered values keep random
contents, and the result says what the collectives would carry. The step is replayed on one set of inputs; then every
kernel's launches, those of all layers one after another, are timed by themselves on the arguments that the step left.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from statistics import median

import numpy as np

from k3compiler.check.bench import kernel_digest
from k3compiler.check.rates import Rates, describe_device, measure_rates
from k3compiler.check.step.floor import (
    Traffic,
    collective_rows,
    step_traffic,
)
from k3compiler.check.step.memory import RandomFill, kind_of
from k3compiler.check.step.records import (
    KernelRow,
    LayerRow,
    OpRow,
    StepBench,
    StepPoint,
    StepRow,
)
from k3compiler.check.step.sizes import bucket, check_room, page_columns, step_symbols
from k3compiler.dtypes import itemsize
from k3compiler.errors import K3Error
from k3compiler.package.expr import evaluate
from k3compiler.package.manifest import (
    CollectiveStep,
    KernelRecord,
    LaunchStep,
    Step,
)
from k3compiler.package.reader import Package
from k3compiler.package.summary import launch_scalars, layer_groups
from k3compiler.runtime.decode_seats import build_decode
from k3compiler.runtime.device.base import Device, TensorRef
from k3compiler.runtime.device.launch_table import LaunchTable
from k3compiler.runtime.device.select import open_device
from k3compiler.runtime.plan_runner import PlanRunner
from k3compiler.runtime.state import state_records
from k3compiler.runtime.step import SeqChunk, StepInputs
from k3compiler.runtime.weights import param_bytes

STEP_SECONDS, KERNEL_SECONDS = 0.1, 0.01  # of one sample of steps, of one kernel's launches
SAMPLES = 5
ROUTERS = ("moe.route", "moe.route_topk")


def bench_steps(
    package: Package,
    points: Sequence[StepPoint],
    *,
    rank: int = 0,
    seed: int = 0,
    device: Device | None = None,
    progress: Callable[[str], None] | None = None,
) -> StepBench:
    """Times the decode step of one rank at every point.

    Args:
        rank: whose share of the weights.
        seed: of weights, caches and tokens.
        progress: told what is done, a line at a time.

    Raises:
        K3Error: K3-R013 a point's weights and caches do not fit the device, K3-R005 no such rank.
    """
    opened = device or open_device(None, package.manifest.target)
    _check_rank(package, rank)
    opened.load(package)
    rates = measure_rates(opened)
    say = progress or (lambda _: None)
    say(f"copy rate {rates.bytes_per_s / 1e9:.0f} GB/s")
    check_room(package, points, opened)
    bench = StepBench(
        chip="",
        rates=rates,
        facts={
            "date": datetime.date.today().isoformat(),
            "package": package.manifest.digest,
            "tp": package.manifest.parallel.tp,
            "ep": package.manifest.parallel.ep,
            "rank": rank,
            "kernels": {k.symbol: kernel_digest(package, k) for k in package.manifest.kernels},
            **describe_device(opened),
        },
    )
    bench.chip, bench.choices = str(bench.facts["chip"]), list(package.manifest.parallel.choices)
    start = time.perf_counter()
    weights = _make_weights(package, opened, seed)
    opened.synchronize()
    bench.facts["weights_seconds"] = round(time.perf_counter() - start, 2)
    say(f"weights made in {bench.facts['weights_seconds']} s")
    for point in points:
        _Step(package, opened, point, weights, rank, seed).measure(bench)
        row = bench.steps[-1]
        say(f"batch {row.batch}, context {row.context}: {row.ms} ms, floor {row.floor_ms} ms")
    return bench


def _check_rank(package: Package, rank: int) -> None:
    ranks = package.manifest.parallel.tp
    if not 0 <= rank < ranks:
        raise K3Error(
            "K3-R005", where="--rank", expected=f"a rank from 0 to {ranks - 1}", found=str(rank)
        )


def _make_weights(package: Package, device: Device, seed: int) -> dict[str, TensorRef]:
    random = RandomFill.of(device, seed)
    refs: dict[str, TensorRef] = {}
    for param in package.weights.params:
        ref = TensorRef(device.allocate(param_bytes(param)), param.dtype, param.shape)
        random.fill(ref, kind_of(param))
        refs[f"w:{param.name}"] = ref
    return refs


class _Step:
    """One point: caches, inputs, and the plan bound to them."""

    def __init__(
        self,
        package: Package,
        device: Device,
        point: StepPoint,
        weights: dict[str, TensorRef],
        rank: int,
        seed: int,
    ) -> None:
        self.package, self.device, self.point = package, device, point
        self.plan = package.plan("decode")
        self.kernels = {k.symbol: k for k in package.manifest.kernels}
        symbols = step_symbols(package, point)
        self.constants = {n: v for n, v in symbols.items() if n not in ("T", "S", "R", "P")} | {
            "rank": rank
        }
        self.random = RandomFill.of(device, seed + 1)
        self.fixed = weights | self._make_caches()
        self.step = self._inputs(np.random.default_rng(seed))

    def _make_caches(self) -> dict[str, TensorRef]:
        refs: dict[str, TensorRef] = {}
        for name, record in state_records(self.package.manifest, [self.plan]).items():
            shape = tuple(evaluate(n, self.constants) for n in record.shape)
            buffer = self.device.allocate(record.num_bytes(self.constants))
            refs[name] = TensorRef(buffer, record.dtype, shape)
            self.random.fill(refs[name], "small")
        return refs

    def _gathered(self) -> dict[str, TensorRef]:
        """What other ranks would have their part in: results of collectives that are not in place."""
        names = {a for s in self.plan.steps if isinstance(s, CollectiveStep) for a in s.args[1:]}
        symbols, refs = self._whole_symbols(), dict[str, TensorRef]()
        for buffer in self.plan.buffers:
            if buffer.name in names:
                shape = tuple(evaluate(n, symbols) for n in buffer.shape)
                size = int(np.prod(shape)) * itemsize(buffer.dtype)
                refs[buffer.name] = TensorRef(self.device.allocate(size), buffer.dtype, shape)
                self.random.fill(refs[buffer.name], "small")
        return refs

    def _inputs(self, rng: np.random.Generator) -> StepInputs:
        point, columns = self.point, page_columns(self.package, self.point)
        tokens = rng.integers(0, self.package.manifest.config.vocab_size, point.batch).tolist()
        chunks = [
            SeqChunk([token], point.context, 1 + s, range(1 + s * columns, 1 + (s + 1) * columns))
            for s, token in enumerate(tokens)
        ]
        return build_decode(
            chunks,
            page_columns=columns,
            page_tokens=self.package.manifest.page_tokens,
            num_rows=point.batch if self.device.exact_rows else bucket(self.package, point.batch),
        )

    def measure(self, bench: StepBench) -> None:
        with self._runner(apart=False) as runner:
            milliseconds = self._step_seconds(runner) * 1e3
        with self._runner(apart=True) as runner:
            runner.run(self.step)
            experts, finite = self._experts(runner), self._is_finite(runner)
            rows = [self._kernel_row(runner, n, bench.rates) for n in self._launches()]
        traffic = step_traffic(
            self.package, batch=self.point.batch, context=self.point.context, experts=experts
        )
        bench.steps.append(self._step_row(milliseconds, traffic, rows, bench.rates, finite))
        bench.kernels += rows
        bench.ops += self._op_rows(rows)
        bench.layers += self._layer_rows()
        bench.collectives += collective_rows(self.plan, self._whole_symbols(), self.point.batch)

    @contextmanager
    def _runner(self, *, apart: bool) -> Iterator[PlanRunner]:
        """The plan as it is, but for what other ranks would fill; ``apart``: every buffer in its own memory."""
        gathered = self._gathered()
        buffers = tuple(
            replace(b, storage=None) if b.kind != "state" and apart else b
            for b in self.plan.buffers
            if b.name not in gathered
        )
        plan = replace(self.plan, buffers=buffers, storage=() if apart else self.plan.storage)
        fixed = self.fixed | gathered
        runner = PlanRunner(self.device, plan, self.kernels, fixed, self.constants)
        yield runner
        self.device.synchronize()

    def _step_seconds(self, runner: PlanRunner) -> float:
        return _seconds(self.device, lambda: runner.start(self.step), STEP_SECONDS)

    def _launches(self) -> list[str]:
        """The kernels of a step, in order of first launch."""
        return list(dict.fromkeys(s.launch for s in self._launched(self.plan.steps)))

    def _launched(self, steps: Iterable[Step]) -> list[LaunchStep]:
        """The launches that have a program at this size."""
        symbols = self._whole_symbols()
        return [
            s
            for s in steps
            if isinstance(s, LaunchStep) and all(evaluate(n, symbols) for n in s.grid)
        ]

    def _layer_rows(self) -> list[LayerRow]:
        return [
            LayerRow(
                self.point.batch,
                group.title,
                max(len(group.layers), 1),
                len(self._launched(group.steps)),
                sum(isinstance(s, CollectiveStep) for s in group.steps),
            )
            for group in layer_groups(self.plan)
        ]

    def _whole_symbols(self) -> dict[str, int]:
        symbols = {**self.constants, **self.step.symbols}
        return symbols | {n: evaluate(e, symbols) for n, e in self.plan.symbols.items()}

    def _kernel_row(self, runner: PlanRunner, symbol: str, rates: Rates) -> KernelRow:
        steps = [
            replace(s, stream=0, waits=())
            for s in self._launched(self.plan.steps)
            if s.launch == symbol
        ]
        kernel = self.kernels[symbol]
        seconds = self._alone_seconds(runner, kernel, steps) / len(steps)
        floor = self._floor_seconds(kernel, steps, rates)
        return KernelRow(
            self.point.batch,
            self.point.context,
            kernel.op,
            symbol,
            len(steps),
            round(seconds * 1e6, 2),
            round(floor * 1e6, 2),
            round(seconds * len(steps) * 1e3, 4),
            round(seconds / floor, 2) if floor else 0.0,
        )

    def _alone_seconds(
        self, runner: PlanRunner, kernel: KernelRecord, steps: list[LaunchStep]
    ) -> float:
        """Seconds of all launches of a kernel, one behind the other, each with its own layer's arguments."""
        each = [zip(kernel.args, step.args, strict=True) for step in steps]
        names = sorted({text for pairs in each for arg, text in pairs if arg.kind == "buffer"})
        ids = {name: index for index, name in enumerate(names)}
        hidden = self.device.hidden_slots
        table = LaunchTable(steps, {kernel.symbol: kernel}, ids, hidden_slots=hidden)
        table.bind(np.array([runner.pointer(name) for name in names], np.int64))
        table.patch(self._whole_symbols())
        program = self.device.program(table)
        return _seconds(self.device, lambda: program.run([], (0,)), KERNEL_SECONDS)

    def _floor_seconds(self, kernel: KernelRecord, steps: list[LaunchStep], rates: Rates) -> float:
        symbols = launch_scalars(kernel, steps[0], self._whole_symbols())
        moved, done = evaluate(kernel.floor.bytes, symbols), evaluate(kernel.floor.flops, symbols)
        return max(moved / rates.bytes_per_s, done / rates.flops)

    def _step_row(
        self, ms: float, traffic: Traffic, rows: list[KernelRow], rates: Rates, finite: bool
    ) -> StepRow:
        floor, alone = traffic.total / rates.bytes_per_s * 1e3, sum(row.ms for row in rows)
        return StepRow(
            self.point.batch,
            self.point.context,
            round(ms, 4),
            round(floor, 4),
            round(ms / floor, 3),
            round(traffic.weight_bytes / 1e9, 4),
            round(traffic.cache_bytes / 1e9, 4),
            round(alone, 4),
            round(ms - alone, 4),
            sum(row.launches for row in rows),
            finite,
        )

    def _op_rows(self, rows: list[KernelRow]) -> list[OpRow]:
        """Sums by op, the longest first."""
        whole = sum(row.ms for row in rows)
        found = [
            OpRow(
                self.point.batch,
                self.point.context,
                op,
                sum(r.launches for r in rows if r.op == op),
                round(sum(r.ms for r in rows if r.op == op), 4),
                round(sum(r.floor_us * r.launches for r in rows if r.op == op) / 1e3, 4),
                round(sum(r.ms for r in rows if r.op == op) / whole, 3),
            )
            for op in dict.fromkeys(row.op for row in rows)
        ]
        return sorted(found, key=lambda row: -row.ms)

    def _experts(self, runner: PlanRunner) -> dict[int, int]:
        """By layer, how many of this rank's experts the step chose, where a router says so."""
        parallel, config = self.package.manifest.parallel, self.package.manifest.config.moe
        if config is None:
            return {}
        local = config.num_experts // parallel.ep
        first = self.constants["rank"] // (parallel.tp // parallel.ep) * local
        found: dict[int, int] = {}
        for step in self._launched(self.plan.steps):
            if step.op in ROUTERS:
                names = [a.name for a in self.kernels[step.launch].args]
                if step.layer is not None and "ids" in names:
                    ids = runner.read(step.args[names.index("ids")])
                    mine = np.unique(ids[: self.point.batch] - first)
                    found[step.layer] = int(((mine >= 0) & (mine < local)).sum())
        return found

    def _is_finite(self, runner: PlanRunner) -> bool:
        """Whether the last residual stream's logits are numbers (this rank's, before they are gathered)."""
        gathers = [s for s in self.plan.steps if isinstance(s, CollectiveStep) and len(s.args) > 1]
        last = [s.args[0] for s in gathers if s.layer is None]
        return bool(np.isfinite(runner.read(last[-1] if last else "logits")).all())


def _seconds(device: Device, run: Callable[[], object], sample: float) -> float:
    """Median seconds of one run among many in a row; the first ones warm up, and record where the device can."""
    for _ in range(2):
        run()
    device.synchronize()
    start = time.perf_counter()
    run()
    device.synchronize()
    count = max(1, min(200, int(sample / max(time.perf_counter() - start, 1e-6))))
    samples: list[float] = []
    for _ in range(SAMPLES):
        start = time.perf_counter()
        for _ in range(count):
            run()
        device.synchronize()
        samples.append((time.perf_counter() - start) / count)
    return median(samples)
