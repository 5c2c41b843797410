"""A step's launches in time: on which branch, from when to when, measured or estimated.

A launch begins when the one before it on its branch and those it waits for have ended; nothing is said of launches that
share the memory's bandwidth. Collectives take no time here (a rank alone is looked at).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from k3compiler.errors import K3Error
from k3compiler.package.expr import evaluate
from k3compiler.package.manifest import KernelRecord, LaunchStep, Manifest, Plan, Step
from k3compiler.package.summary import Point, launch_scalars, plan_symbols

LAUNCH_US = 2.0  # what a small kernel takes in a graph, start to end


@dataclass(frozen=True, slots=True)
class Clock:
    """Where times are from: measured µs by kernel, and the rate (bytes/s) that estimates the others."""

    bytes_per_s: float
    measured_us: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Slot:
    """One step in time; µs. ``floor_us`` are the bytes it must move at the chip's rate."""

    index: int
    step: Step
    begin_us: float
    us: float
    floor_us: float
    is_measured: bool

    @property
    def end_us(self) -> float:
        return self.begin_us + self.us


def timeline(manifest: Manifest, plan: Plan, point: Point, clock: Clock) -> list[Slot]:
    """Every step of the plan, in order; launches with an empty grid at this point are left out."""
    symbols = plan_symbols(manifest, plan, point)
    kernels = {kernel.symbol: kernel for kernel in manifest.kernels}
    ends: list[float] = []
    branches: dict[int, float] = {}
    slots: list[Slot] = []
    for index, step in enumerate(plan.steps):
        begin = max([branches.get(step.stream, 0.0), *(ends[w] for w in step.waits)])
        slot = Slot(index, step, begin, 0.0, 0.0, False)
        if isinstance(step, LaunchStep) and all(evaluate(g, symbols) for g in step.grid):
            slot = _launched(slot, kernels[step.launch], step, symbols, clock)
        if slot.us or not isinstance(step, LaunchStep):
            slots.append(slot)
        ends.append(slot.end_us)
        branches[step.stream] = slot.end_us
    return slots


def _launched(
    slot: Slot, kernel: KernelRecord, step: LaunchStep, symbols: Mapping[str, int], clock: Clock
) -> Slot:
    floor = _bytes(kernel, step, symbols) / clock.bytes_per_s * 1e6
    measured = clock.measured_us.get(kernel.symbol)
    us = floor + LAUNCH_US if measured is None else measured
    return Slot(slot.index, step, slot.begin_us, us, floor, measured is not None)


def _bytes(kernel: KernelRecord, step: LaunchStep, symbols: Mapping[str, int]) -> int:
    """The floor; 0 where it depends on sizes that only a run knows."""
    try:
        return evaluate(kernel.floor.bytes, launch_scalars(kernel, step, symbols))
    except K3Error as error:
        if error.code != "K3-K002":
            raise
        return 0


def end_us(slots: Sequence[Slot]) -> float:
    """When the last step has ended."""
    return max((slot.end_us for slot in slots), default=0.0)
