"""What tuning hands on: the list of candidates in a bundle, and what a device made of them.

A bundle is a package without steps whose kernels are candidates; ``tune.json`` in it says which of them compete.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from k3compiler.errors import K3Error
from k3compiler.package.codec import canonical_json, decode, encode
from k3compiler.package.reader import Package

TUNE_NAME = "tune.json"


@dataclass(frozen=True, slots=True)
class Candidate:
    """One schedule of a shape: its kernel, what it sets, and µs by bucket as the cost model sees it."""

    symbol: str
    set: dict[str, Any]
    predicted_us: dict[str, float]


@dataclass(frozen=True, slots=True)
class TuneShape:
    """A kernel to tune: its static parameters but for what the candidates set.

    Attributes:
        buckets: by name, the sizes (``T``, ``S``, ...) that candidates are timed at.
        launches: how many layers of the model launch it.
        present: the symbol of the schedule in force; it is one of the candidates.
        options: of that schedule, what the target's compiler takes beside the program.
    """

    family: str
    phase: str
    dims: dict[str, Any]
    launches: int
    buckets: dict[str, dict[str, int]]
    present: str
    candidates: tuple[Candidate, ...]
    options: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class TuneList:
    """``tune.json``."""

    shapes: tuple[TuneShape, ...]


@dataclass(frozen=True, slots=True)
class Timing:
    """A candidate on the device: median µs by bucket, their spread, and the worst error of its outputs.

    A candidate that failed its check has no times; ``note`` says what was wrong.
    """

    symbol: str
    digest: str
    set: dict[str, Any]
    predicted_us: dict[str, float]
    us: dict[str, float]
    spread_us: dict[str, float]
    error: float | None
    passed: bool
    note: str = ""


@dataclass(frozen=True, slots=True)
class MeasuredShape:
    """The candidates of one shape that were reached in the time there was."""

    family: str
    phase: str
    dims: dict[str, Any]
    launches: int
    present: str
    timings: tuple[Timing, ...]
    options: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class Measurement:
    """What ``k3c tune BUNDLE --measure`` writes.

    ``agreement`` is the mean rank correlation (Spearman's) of predicted and measured times over shapes and buckets
    with at least three candidates; None where there is none.
    """

    target: str
    bundle: str
    facts: dict[str, str]
    shapes: tuple[MeasuredShape, ...]
    agreement: float | None = None
    unreached: tuple[str, ...] = field(default_factory=tuple[str, ...])

    def to_bytes(self) -> bytes:
        return canonical_json(encode(self))


def read_tune_list(package: Package) -> TuneList:
    """The candidates of a bundle.

    Raises:
        K3Error: K3-K022 the package is no bundle, K3-K003 its list is not one.
    """
    if TUNE_NAME not in package.manifest.files:
        raise K3Error(
            "K3-K022",
            where=str(package.path),
            expected=f"a bundle of candidates ({TUNE_NAME})",
            found="a package",
            hint="k3c tune PACKAGE --prepare -o BUNDLE makes one",
        )
    made = decode(TuneList, json.loads(package.read(TUNE_NAME)), TUNE_NAME)
    known = {k.symbol for k in package.manifest.kernels}
    for index, shape in enumerate(made.shapes):
        symbols = [c.symbol for c in shape.candidates]
        absent = [s for s in symbols if s not in known]
        if absent or shape.present not in symbols:
            raise K3Error(
                "K3-K022",
                where=f"{package.path / TUNE_NAME}: shapes[{index}]",
                expected="candidates that are kernels of the bundle, the present one among them",
                found=(absent or [shape.present])[0],
            )
    return made


def read_measurement(path: Path) -> Measurement:
    """The results of a measurement.

    Raises:
        K3Error: K3-K022 not a file with one.
    """
    try:
        return decode(Measurement, json.loads(path.read_bytes()), str(path))
    except (K3Error, ValueError) as fault:
        raise K3Error(
            "K3-K022",
            where=str(path),
            expected="what k3c tune BUNDLE --measure wrote",
            found=fault.found if isinstance(fault, K3Error) else str(fault),
        ) from None
