"""What a bench of whole steps says: one record a row of its tables."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from k3compiler.check.rates import Rates
from k3compiler.check.step.floor import CollectiveRow
from k3compiler.package.manifest import ShardRecord


@dataclass(frozen=True, slots=True)
class StepPoint:
    """A step: ``batch`` sequences, each with ``context`` tokens in the caches, take one more."""

    batch: int
    context: int


@dataclass(frozen=True, slots=True)
class StepRow:
    """One point. Rates are bytes read plus written; ``gap_ms`` is the step less its kernels timed alone."""

    batch: int
    context: int
    ms: float
    floor_ms: float
    ratio: float
    weight_gb: float
    cache_gb: float
    kernels_ms: float
    gap_ms: float
    launches: int
    finite: bool


@dataclass(frozen=True, slots=True)
class KernelRow:
    """One kernel's launches in a step, timed alone."""

    batch: int
    context: int
    op: str
    kernel: str
    launches: int
    us_each: float
    floor_us: float
    ms: float
    ratio: float


@dataclass(frozen=True, slots=True)
class OpRow:
    """All kernels of one op in a step."""

    batch: int
    context: int
    op: str
    launches: int
    ms: float
    floor_ms: float
    share: float


@dataclass(frozen=True, slots=True)
class LayerRow:
    """Layers of one kind: how many, and how many launches each has (those with an empty grid are left out)."""

    batch: int
    layers: str
    count: int
    launches: int
    collectives: int


@dataclass(slots=True)
class StepBench:
    """The tables and what they were measured on."""

    chip: str
    rates: Rates
    facts: dict[str, Any]
    layers: list[LayerRow] = field(default_factory=list[LayerRow])
    steps: list[StepRow] = field(default_factory=list[StepRow])
    ops: list[OpRow] = field(default_factory=list[OpRow])
    kernels: list[KernelRow] = field(default_factory=list[KernelRow])
    collectives: list[CollectiveRow] = field(default_factory=list[CollectiveRow])
    choices: list[ShardRecord] = field(default_factory=list[ShardRecord])

    def to_json(self) -> dict[str, Any]:
        return asdict(self)
