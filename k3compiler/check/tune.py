"""Candidates on the device: each checked against the reference, then timed on the same arguments.

Launches of one timed run go through copies of the arguments that together are larger than the last cache.
"""

from __future__ import annotations

import datetime
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np

from k3compiler.check.case import Array, Case, judge, make_case
from k3compiler.check.rates import describe_device
from k3compiler.check.runner import as_packaged, single_launch, symbol_values
from k3compiler.check.verify import MOST_AHEAD
from k3compiler.errors import K3Error
from k3compiler.package.manifest import KernelRecord, LaunchStep
from k3compiler.package.reader import Package
from k3compiler.package.tuning import (
    MeasuredShape,
    Measurement,
    Timing,
    TuneShape,
    read_tune_list,
)
from k3compiler.runtime.device.base import Buffer, Device
from k3compiler.runtime.device.launch_table import LaunchTable

ROTATED_BYTES = 160 << 20  # more than three times the last cache of a large GPU
MAX_COPIES = 24
LAUNCHES = 24  # of one recording
RUNS = 4  # of the recording in one sample
SAMPLES = 9
WARM_SAMPLES = 3


def measure_bundle(
    bundle: Package, *, device: Device, seconds: float | None = None, seed: int = 0
) -> Measurement:
    """Checks and times every candidate of a bundle.

    Args:
        seconds: begin no further shape after so many; those are named as unreached.

    Raises:
        K3Error: K3-K022 the package is no bundle.
    """
    shapes = read_tune_list(bundle).shapes
    device.load(bundle)
    kernels = {k.symbol: k for k in bundle.manifest.kernels}
    end = float("inf") if seconds is None else time.monotonic() + seconds
    done: list[MeasuredShape] = []
    unreached: list[str] = []
    for shape, cases in _prepared(shapes, kernels, seed, end):
        if cases is None:
            unreached.append(shape.present)
        else:
            done.append(_measure(shape, cases, kernels, bundle, device, end))
    facts = describe_device(device) | {"date": datetime.date.today().isoformat()}
    return Measurement(
        bundle.manifest.target.name,
        bundle.manifest.digest,
        facts,
        tuple(done),
        agreement(done),
        tuple(unreached),
    )


Cases = Mapping[str, Case]


def _prepared(
    shapes: Sequence[TuneShape], kernels: Mapping[str, KernelRecord], seed: int, end: float
) -> Iterator[tuple[TuneShape, Cases | None]]:
    """Shapes with their cases, a few made ahead; None for the cases once the time is over."""

    def make(shape: TuneShape, sizes: dict[str, int]) -> Case:
        kernel = kernels[shape.present]
        rng = np.random.default_rng([seed, zlib.crc32(kernel.symbol.encode()), *sizes.values()])
        return make_case(kernel.family, kernel.params, rng, sizes)

    with ThreadPoolExecutor(MOST_AHEAD) as pool:
        waiting: list[dict[str, Future[Case]]] = []
        for index, shape in enumerate(shapes):
            for following in shapes[index + len(waiting) : index + 3]:
                made = {n: pool.submit(make, following, s) for n, s in following.buckets.items()}
                waiting.append(made)
            futures = waiting.pop(0)
            if time.monotonic() > end:
                for future in futures.values():
                    future.cancel()
                yield shape, None
            else:
                yield shape, {name: future.result() for name, future in futures.items()}


def _measure(
    shape: TuneShape,
    cases: Cases,
    kernels: Mapping[str, KernelRecord],
    bundle: Package,
    device: Device,
    end: float,
) -> MeasuredShape:
    timings: dict[str, Timing] = {
        c.symbol: Timing(
            c.symbol, _digest(bundle, kernels[c.symbol]), c.set, c.predicted_us, {}, {}, None, True
        )
        for c in shape.candidates
    }
    for bucket, case in cases.items():
        if time.monotonic() > end:
            break
        arguments = _Arguments(kernels[shape.present], case, device)
        arguments.samples(kernels[shape.present])  # the device's clocks come up again
        for candidate in shape.candidates:
            if timings[candidate.symbol].passed:
                former = timings[candidate.symbol]
                kernel = kernels[candidate.symbol]
                timings[candidate.symbol] = _one(former, kernel, bucket, case, arguments)
    ordered = tuple(timings[c.symbol] for c in shape.candidates)
    return MeasuredShape(
        shape.family,
        shape.phase,
        shape.dims,
        shape.launches,
        shape.present,
        ordered,
        shape.options,
    )


def _digest(bundle: Package, kernel: KernelRecord) -> str:
    """Of the kernel's binary, or of the library that holds it."""
    files = [kernel.files[k] for k in ("cubin", "hsaco") if k in kernel.files]
    listed = files or list(bundle.manifest.libraries.values())
    return ",".join(bundle.manifest.files[name] for name in listed)


def _one(
    former: Timing, kernel: KernelRecord, bucket: str, case: Case, arguments: _Arguments
) -> Timing:
    """One candidate at one bucket: what was known of it, and what this adds."""
    try:
        results = arguments.launch_once(kernel)
        verdicts = judge(case, results)
        bad = [v for v in verdicts if not v.passed]
        if bad:
            note = f"{bucket}: {bad[0].output}: {bad[0].note or bad[0].error}"
            return replace(former, us={}, spread_us={}, passed=False, note=note)
        samples = arguments.samples(kernel)
    except K3Error as refusal:
        note = f"{bucket}: {refusal.code} {refusal.found}"
        return replace(former, us={}, spread_us={}, passed=False, note=note)
    low, high = np.percentile(samples, (25, 75))
    return replace(
        former,
        us={**former.us, bucket: round(median(samples) * 1e6, 3)},
        spread_us={**former.spread_us, bucket: round(float(high - low) * 1e6, 3)},
        error=max([former.error or 0.0, *(v.error for v in verdicts)]),
    )


class _Arguments:
    """A case's arguments in device memory: some copies, uploaded once for all candidates of a shape."""

    def __init__(self, kernel: KernelRecord, case: Case, device: Device) -> None:
        self.device = device
        self.values: dict[str, Any] = as_packaged(kernel, case.arguments)
        self.names = [a.name for a in kernel.args if a.kind == "buffer"]
        self.arrays: dict[str, Array] = {
            n: np.ascontiguousarray(np.asarray(self.values[n])) for n in self.names
        }
        size = sum(a.nbytes for a in self.arrays.values())
        count = min(MAX_COPIES, max(1, -(-ROTATED_BYTES // size)))
        self.copies = [self._upload() for _ in range(count)]

    def _upload(self) -> list[Buffer]:
        buffers = [self.device.allocate(self.arrays[n].nbytes) for n in self.names]
        for name, buffer in zip(self.names, buffers, strict=True):
            self.device.upload(buffer, self.arrays[name])
        return buffers

    def launch_once(self, kernel: KernelRecord) -> dict[str, Array]:
        """What a launch writes, from arguments as the case made them."""
        written = [a for a in kernel.args if a.kind == "buffer" and a.access != "r"]
        place = dict(zip(self.names, self.copies[0], strict=True))
        for a in written:
            self.device.upload(place[a.name], self.arrays[a.name])
        hidden = self.device.hidden_slots
        table = single_launch(kernel, self.values, hidden_slots=hidden)
        table.bind(np.array([place[n].pointer for n in self.names], np.int64))
        table.patch(symbol_values(kernel, self.values))
        self.device.program(table).run([], None)
        return {
            a.name: self.device.download(place[a.name], a.dtype, self.arrays[a.name].shape)
            for a in written
        }

    def samples(self, kernel: KernelRecord) -> list[float]:
        """Seconds of a launch, some times."""
        table = self._table(kernel)
        program, samples = self.device.program(table), list[float]()
        program.run([], (0,))  # warms up, and records where the device can replay
        for _ in range(WARM_SAMPLES + SAMPLES):
            self.device.synchronize()
            start = time.perf_counter()
            for _ in range(RUNS):
                program.run([], (0,))
            self.device.synchronize()
            samples.append((time.perf_counter() - start) / (RUNS * LAUNCHES))
        return samples[WARM_SAMPLES:]

    def _table(self, kernel: KernelRecord) -> LaunchTable:
        hidden = self.device.hidden_slots
        (step,) = single_launch(kernel, self.values, hidden_slots=hidden).launches
        pointers: list[int] = []
        ids: dict[str, int] = {}
        for turn, buffers in enumerate(self.copies):
            for name, buffer in zip(self.names, buffers, strict=True):
                ids[f"{name}#{turn}"] = len(pointers)
                pointers.append(buffer.pointer)
        copies: list[LaunchStep] = []
        for index in range(LAUNCHES):
            turn = index % len(self.copies)
            args = (
                f"{a.name}#{turn}" if a.kind == "buffer" else text
                for a, text in zip(kernel.args, step.args, strict=True)
            )
            copies.append(replace(step, args=tuple(args)))
        table = LaunchTable(copies, {kernel.symbol: kernel}, ids, hidden_slots=hidden)
        table.bind(np.array(pointers, np.int64))
        table.patch(symbol_values(kernel, self.values))
        return table


def agreement(shapes: Sequence[MeasuredShape]) -> float | None:
    """How well the cost model's order is the measured one (see :class:`Measurement`)."""
    found: list[float] = []
    for shape in shapes:
        timed = [t for t in shape.timings if t.us]
        for bucket in timed[0].us if timed else ():
            pairs = [
                (t.predicted_us[bucket], t.us[bucket])
                for t in timed
                if bucket in t.us and bucket in t.predicted_us
            ]
            if len(pairs) >= 3:
                found.append(_spearman(np.array(pairs)))
    return round(float(np.mean(found)), 3) if found else None


def _spearman(pairs: Array) -> float:
    """Rank correlation of two columns; 0 where one of them is constant."""
    ranks = [_ranks(column) for column in pairs.T]
    spread = [float(np.std(r)) for r in ranks]
    if min(spread) == 0:
        return 0.0
    centred = [r - r.mean() for r in ranks]
    return float(np.mean(centred[0] * centred[1]) / (spread[0] * spread[1]))


def _ranks(values: Array) -> Array:
    """Ranks, those of equal values averaged."""
    below = (values[:, None] > values[None, :]).sum(1)
    same = (values[:, None] == values[None, :]).sum(1)
    return below + (same - 1) / 2.0
