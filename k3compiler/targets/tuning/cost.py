"""A cost model: microseconds of a launch from bytes, flops, the grid and what fits on a multiprocessor at a time.

It ranks schedules of one kernel; its microseconds are not to be believed beyond that. A program's chain of waits and
what the whole grid asks of memory and matrix units are both lower bounds, and the larger one counts. Constants without
a source are from K3's decode kernels on an H200 (bench/results/tune-kimi-k3-tp8-decode-h200-2026-11-29.json).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

from k3compiler.package.manifest import LaunchRecord, ResourceRecord
from k3compiler.targets.base import KIB, Kind, TargetSpec
from k3compiler.targets.tuning.work import Work

LAUNCH_S = 1.5e-6
LATENCY_S = 0.8e-6  # of a read from memory
WAIT_S = 0.12e-6  # of one iteration: barriers and the product's own latency
RATE = 0.9  # what streaming reaches of the peak
CACHE_FACTOR = 2.2  # the last cache's rate over memory's
UNIT_FACTOR = 2.5  # what one multiprocessor can pull over its share
ELEMENTS_PER_S = 128 * 1.7e9 / 4  # a multiprocessor, at four instructions an element
SPILL_PENALTY = 1.5
FREE_WARPS = 4  # more of them in a program wait for each other longer:
WARP_EXPONENT = 0.3
MAX_PROGRAMS = 32
RESERVED_BYTES = KIB  # of shared memory, a program


@dataclass(frozen=True, slots=True)
class Unit:
    """A multiprocessor or compute unit: its registers (of 32 bits), the most a thread can have, its threads."""

    registers: int
    widest: int
    threads: int = 2048


UNITS: Mapping[Kind, Unit] = {
    "cuda": Unit(65536, 255),
    "hip": Unit(131072, 512),
    "cpu": Unit(1 << 30, 1 << 30, 1 << 30),  # no such limits; the model knows nothing more of CPUs
}


@dataclass(frozen=True, slots=True)
class Footprint:
    """What one program takes of a multiprocessor."""

    warps: int
    stages: int
    registers: int
    shared_bytes: int
    spills: bool = False

    @classmethod
    def guess(cls, work: Work, *, warps: int, stages: int, spec: TargetSpec) -> Footprint:
        """Before the kernel is built."""
        widest = UNITS[spec.kind].widest
        registers = 40 + work.held_bytes // (4 * warps * spec.warp_size)
        shared = work.staged_bytes * max(stages, 1)
        return cls(warps, stages, min(registers, widest), shared, registers > widest)

    @classmethod
    def of_built(cls, launch: LaunchRecord, resources: ResourceRecord) -> Footprint:
        """As the toolchain reported it."""
        return cls(
            launch.num_warps,
            launch.num_stages,
            max(resources.registers, 16),
            launch.shared_bytes,
            resources.spill_bytes > 0,
        )

    def fits(self, spec: TargetSpec) -> bool:
        return spec.shared_limit_bytes is None or self.shared_bytes <= spec.shared_limit_bytes

    def programs_at_once(self, spec: TargetSpec) -> int:
        """Programs that one multiprocessor holds."""
        unit, threads = UNITS[spec.kind], self.warps * spec.warp_size
        shared = spec.shared_limit_bytes or 0
        limits = [
            MAX_PROGRAMS,
            unit.threads // threads,
            unit.registers // (threads * self.registers),
        ]
        if shared:
            limits.append(shared // (self.shared_bytes + RESERVED_BYTES))
        return max(min(limits), 1)


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch: its programs, and the least bytes and flops of the whole."""

    programs: int
    floor_bytes: int


def predict_us(work: Work, foot: Footprint, launch: Launch, spec: TargetSpec) -> float:
    """Microseconds of a launch of a kernel on a GPU."""
    units, rate = spec.num_units or 1, (spec.bytes_per_s or 1e11) * RATE
    at_once = foot.programs_at_once(spec)
    waves = ceil(launch.programs / (units * at_once))
    busiest = ceil(launch.programs / units)
    moved = work.first_bytes + work.loop_bytes + work.written_bytes
    ahead = max(foot.stages - 1, 1)
    crowd = max(foot.warps / FREE_WARPS, 1.0) ** WARP_EXPONENT
    step = max(LATENCY_S / ahead, WAIT_S * crowd)
    chain = (LATENCY_S if work.first_bytes else 0.0) + work.steps * step
    elements = work.elements / ELEMENTS_PER_S * crowd
    alone = elements * FREE_WARPS / min(foot.warps, FREE_WARPS)
    flops = spec.flops.get("bf16", 1e12) / units
    bounds = (
        waves * (chain + alone),
        launch.floor_bytes / rate,
        launch.programs * moved / (rate * CACHE_FACTOR),
        busiest * moved * crowd / (rate * UNIT_FACTOR / units),
        busiest * (work.matrix_flops / flops * crowd + elements),
    )
    # two bounds near each other do not overlap wholly
    first, second = sorted(bounds, reverse=True)[:2]
    seconds = (first + 0.3 * second) * (SPILL_PENALTY if foot.spills else 1.0) + LAUNCH_S
    return round(seconds * 1e6, 3)
