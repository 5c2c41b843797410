"""Schedules: which entry wins, and that every family gets all the parameters its builder wants."""

from __future__ import annotations

import inspect
import json
from typing import Any

import pytest

from k3compiler.kernels.base import FAMILIES, family_body
from k3compiler.targets import schedule as schedule_module
from k3compiler.targets.base import TARGETS
from k3compiler.targets.schedule import block_part, launch_part, schedule_for

pytestmark = pytest.mark.t1

ENTRIES: list[dict[str, Any]] = [
    {"family": "*", "set": {"num_warps": 4, "num_stages": 2}},
    {"family": "f", "set": {"block": {"cover": "N", "at_least": 16, "at_most": 128}}},
    {"family": "f", "when": {"N": [65, None]}, "set": {"num_warps": 8}},
    {"family": "f", "when": {"N": [None, 10], "phase": "decode"}, "set": {"block": 1}},
    {"family": "f", "targets": ["gb300"], "set": {"num_stages": 5}},
]


@pytest.fixture
def entries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule_module, "_entries", lambda _vendor: ENTRIES)


@pytest.mark.usefixtures("entries")
@pytest.mark.parametrize(
    ("params", "target", "wanted"),
    [
        ({"N": 64}, "h200", {"num_warps": 4, "num_stages": 2, "block": 64}),
        ({"N": 65}, "h200", {"num_warps": 8, "num_stages": 2, "block": 128}),
        ({"N": 900}, "gb300", {"num_warps": 8, "num_stages": 5, "block": 128}),
        ({"N": 3}, "h200", {"num_warps": 4, "num_stages": 2, "block": 16}),
        ({"N": 3, "phase": "decode"}, "h200", {"num_warps": 4, "num_stages": 2, "block": 1}),
        ({"N": 3, "block": 7}, "h200", {"num_warps": 4, "num_stages": 2}),
    ],
)
def test_later_entries_that_fit_win(
    params: dict[str, Any], target: str, wanted: dict[str, Any]
) -> None:
    assert schedule_for("f", params, target) == wanted


@pytest.mark.usefixtures("entries")
def test_warps_and_blocks_part_ways() -> None:
    chosen = schedule_for("f", {"N": 64}, "h200")
    assert launch_part(chosen) == {"num_warps": 4, "num_stages": 2}
    assert block_part(chosen) == {"block": 64}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_block_size_is_a_parameter_of_its_family(family: str, target: str) -> None:
    known = inspect.signature(family_body(family)).parameters
    unknown = [
        name
        for entry in schedule_module._entries(schedule_module.VENDORS[TARGETS[target].kind])
        if entry["family"] == family
        for name in block_part(entry["set"])
        if name not in known
    ]
    assert unknown == []


def test_the_files_are_lists_of_known_keys() -> None:
    keys = {"family", "targets", "when", "over", "set", "note"}
    for vendor in schedule_module.VENDORS.values():
        for entry in schedule_module._entries(vendor):
            assert set(entry) <= keys, json.dumps(entry)
            assert entry["family"] in {*FAMILIES, *schedule_module.PASS_FAMILIES, "*"}
            assert set(entry.get("targets", [])) <= set(TARGETS)
