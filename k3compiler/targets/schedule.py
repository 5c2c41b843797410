"""Schedules: block sizes, warps and pipeline stages by (family, shape bucket, target), from data files.

``targets/<vendor>/schedules/*.json`` hold lists of entries::

    {"family": "gemm", "targets": ["h200"], "when": {"rows": [1, 64]}, "set": {"block_m": 64, "num_warps": 4}}

A value to set may depend on a parameter: ``{"cover": "N", "at_least": 16, "at_most": 128}`` is the smallest power of
two that holds N, within those bounds. ``targets`` may be left out (every target of the vendor), and so may ``when``:
a parameter equals a value, lies in an inclusive ``[low, high]`` where null is open, or is as
``{"multiple_of": 64, "at_least": 512}`` says. ``form`` names the compiler where a target has a choice (AMD: ``flydsl``,
else Triton). ``company`` is given where several kernels are launched as one: how many they are. Key by key the last
entry that fits wins, in the order of the files' names and of their entries. A line that ``k3c tune`` made has ``over``,
the schedule that it was measured against: where the lines before it say otherwise by now, it does not count. ``note``
says where it came from.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from importlib.resources import files
from typing import Any

from k3compiler.targets.base import Kind, find_target

VENDORS: Mapping[Kind, str] = {"cuda": "nvidia", "hip": "amd", "cpu": "cpu"}
LAUNCH_KEYS = (
    "num_warps",
    "num_stages",
    "num_ctas",
    "maxnreg",
    "waves_per_eu",
    "matrix_instr_nonkdim",
    "form",
    "next_grid",
)
ANY_FAMILY = "*"
PASS_FAMILIES = ("moe_sort", "company")
"""No kernels: what passes ask for (rows of an expert's block; the most launches in one)."""


def schedule_for(family: str, params: Mapping[str, Any], target: str) -> dict[str, Any]:
    """What the schedule files say about a kernel of ``family`` with the static ``params`` on ``target``.

    ``params`` may hold ``phase`` (prefill or decode) besides the family's own. Block sizes are in the result under the
    names that the family's builder takes, warps and stages beside them; a parameter that is given is not in it.
    """
    spec = find_target(target)
    chosen: dict[str, Any] = {}
    for entry in _entries(VENDORS[spec.kind]):
        if entry["family"] not in (family, ANY_FAMILY):
            continue
        if spec.name not in entry.get("targets", [spec.name]):
            continue
        if not all(_fits(params.get(k), rule) for k, rule in entry.get("when", {}).items()):
            continue
        now = _values(chosen, params)
        if entry.get("over", now) == now:
            chosen.update(entry["set"])
    return _values(chosen, params)


def _values(chosen: Mapping[str, Any], params: Mapping[str, Any]) -> dict[str, Any]:
    return {k: _value(rule, params) for k, rule in chosen.items() if k not in params}


def _value(rule: Any, params: Mapping[str, Any]) -> Any:
    if not isinstance(rule, dict):
        return rule
    covered = 1 << max(params[rule["cover"]] - 1, 0).bit_length()
    return min(max(covered, rule.get("at_least", 1)), rule.get("at_most", covered))


def set_keys(family: str, vendor: str) -> frozenset[str]:
    """Everything that some entry sets for a family."""
    chosen = (e["set"] for e in _entries(vendor) if e["family"] in (family, ANY_FAMILY))
    return frozenset(key for part in chosen for key in part)


def launch_part(schedule: Mapping[str, Any]) -> dict[str, Any]:
    """The keys that the target's compiler takes; the rest are parameters of the program."""
    return {k: v for k, v in schedule.items() if k in LAUNCH_KEYS}


def block_part(schedule: Mapping[str, Any]) -> dict[str, Any]:
    """The keys that are parameters of the program."""
    return {k: v for k, v in schedule.items() if k not in LAUNCH_KEYS}


def _fits(value: Any, rule: Any) -> bool:
    if isinstance(rule, dict):
        return (
            value is not None
            and value % rule["multiple_of"] == 0
            and value >= rule.get("at_least", 0)
        )
    if not isinstance(rule, list):
        return value == rule
    low, high = rule
    return value is not None and (low is None or value >= low) and (high is None or value <= high)


@lru_cache(maxsize=8)
def _entries(vendor: str) -> list[dict[str, Any]]:
    folder = files("k3compiler.targets") / vendor / "schedules"
    names = sorted(f.name for f in folder.iterdir() if f.name.endswith(".json"))
    return [entry for name in names for entry in json.loads((folder / name).read_text())]
