"""From a measurement to lines of the schedule table: only what beats the schedule in force by more than noise."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from math import exp, log
from pathlib import Path
from typing import Any

from k3compiler.errors import K3Error
from k3compiler.package.tuning import MeasuredShape, Measurement, Timing
from k3compiler.targets.base import find_target
from k3compiler.targets.schedule import VENDORS, set_keys

LEAST_GAIN = 0.03  # of the present time: below, two runs differ as much
MOST_LOSS = 0.02  # at any one bucket
MOST_SPREAD = 0.25  # of a time: beyond, something else was going on
_UNNAMED = ("offset", "in_cols", "out_cols", "eps", "scale")


@dataclass(frozen=True, slots=True)
class Gain:
    """A schedule that won, and the time it takes over the present one's (geometric mean over buckets)."""

    shape: MeasuredShape
    winner: Timing
    ratio: float


def winners(measurement: Measurement) -> list[Gain]:
    """One for each shape where a candidate is faster, nowhere slower, and right."""
    gains: list[Gain] = []
    for shape in measurement.shapes:
        present = next((t for t in shape.timings if t.symbol == shape.present), None)
        if present is None or not present.us:
            continue
        rated = [Gain(shape, t, _ratio(t, present)) for t in shape.timings if _wins(t, present)]
        gains += sorted(rated, key=lambda g: g.ratio)[:1]
    return gains


def _clear(timing: Timing, present: Timing) -> list[str]:
    """The sizes at which both were timed calmly enough to say anything."""
    both = [b for b in present.us if b in timing.us]
    return [
        b for b in both if all(t.spread_us[b] <= MOST_SPREAD * t.us[b] for t in (timing, present))
    ]


def _ratio(timing: Timing, present: Timing) -> float:
    logs = [log(timing.us[b] / present.us[b]) for b in _clear(timing, present)]
    return exp(sum(logs) / len(logs))


def _noise(timing: Timing, present: Timing) -> float:
    """Half the spread of both as a part of the present time (mean of the sizes), or the least gain if more."""
    shares = [
        (timing.spread_us[b] + present.spread_us[b]) / 2 / present.us[b]
        for b in _clear(timing, present)
    ]
    return max(LEAST_GAIN, sum(shares) / len(shares))


def _wins(timing: Timing, present: Timing) -> bool:
    clear = _clear(timing, present)
    if not timing.passed or set(timing.us) != set(present.us) or 2 * len(clear) < len(present.us):
        return False
    is_slower = any(timing.us[b] > present.us[b] * (1 + MOST_LOSS) for b in present.us)
    return not is_slower and _ratio(timing, present) < 1 - _noise(timing, present)


def entries_of(measurement: Measurement) -> list[dict[str, Any]]:
    """Lines of the table (see :mod:`k3compiler.targets.schedule`); shapes that most layers launch come first."""
    spec = find_target(measurement.target)
    made: dict[str, dict[str, Any]] = {}
    for gain in sorted(winners(measurement), key=lambda g: -g.shape.launches):
        shape = gain.shape
        known = set_keys(shape.family, VENDORS[spec.kind])
        entry = {
            "family": shape.family,
            "targets": [spec.name],
            "when": {"phase": shape.phase, **_named(shape.dims, known)},
            "over": _schedule(shape, known),
            "set": gain.winner.set,
            "note": f"{gain.ratio:.2f} of the former time; {measurement.facts.get('chip', '')}, "
            f"{measurement.facts.get('date', '')}",
        }
        made.setdefault(_key(entry), entry)
    return list(made.values())


def _schedule(shape: MeasuredShape, scheduled: frozenset[str]) -> dict[str, Any]:
    """The schedule in force when the shape was measured."""
    present = next(t for t in shape.timings if t.symbol == shape.present)
    blocks = {k: v for k, v in shape.dims.items() if k in scheduled}
    return {**blocks, **shape.options, **present.set}


def _based(entry: dict[str, Any], former: Mapping[str, Any] | None) -> dict[str, Any]:
    """A line that takes the place of one it was measured against stands where that one stood."""
    if former is None or any(entry["over"].get(k) != v for k, v in former["set"].items()):
        return entry
    return {**entry, "over": former.get("over", {})}


def _named(dims: Mapping[str, Any], scheduled: frozenset[str]) -> dict[str, Any]:
    """The parameters that tell a shape from others: sizes and forms, not places in rows or what a schedule sets."""
    return {
        name: value
        for name, value in dims.items()
        if name not in scheduled and not name.endswith(_UNNAMED) and isinstance(value, int | str)
    }


def _key(entry: Mapping[str, Any]) -> str:
    return json.dumps([entry["family"], entry.get("targets"), entry.get("when")], sort_keys=True)


def table_path(measurement: Measurement) -> Path:
    """Where the tuned lines of a target are kept: the last file of its vendor's schedules."""
    spec = find_target(measurement.target)
    folder = Path(str(files("k3compiler.targets") / VENDORS[spec.kind] / "schedules"))
    return folder / f"50-tuned-{spec.name}.json"


def apply_measurement(measurement: Measurement, path: Path) -> list[dict[str, Any]]:
    """Adds what won to the table in ``path``, where a line for the same shape is replaced; returns the new lines.

    Raises:
        K3Error: K3-K022 the file there is no schedule table.
    """
    new = entries_of(measurement)
    if new:
        kept = {_key(e): e for e in _read(path)}
        kept |= {_key(e): _based(e, kept.get(_key(e))) for e in new}
        path.write_text(_text(list(kept.values())))
    return new


def _read(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    try:
        entries = json.loads(path.read_bytes())
    except ValueError as fault:
        raise _no_table(path, str(fault)) from None
    is_table = isinstance(entries, list) and all(
        isinstance(e, dict) and {"family", "set"} <= set(e) for e in entries
    )
    if not is_table:
        raise _no_table(path, "other JSON")
    return entries


def _no_table(path: Path, found: str) -> K3Error:
    return K3Error(
        "K3-K022",
        where=str(path),
        expected="a schedule table (a list of entries), or no file",
        found=found,
        hint="-o names another file",
    )


def _text(entries: Sequence[Mapping[str, Any]]) -> str:
    """One entry a line."""
    return "[\n" + ",\n".join(f"  {json.dumps(e)}" for e in entries) + "\n]\n"
