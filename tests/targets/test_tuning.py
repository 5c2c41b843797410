"""The search space, the cost model, and the lines that a measurement makes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from k3compiler.errors import K3Error
from k3compiler.ir.location import Origin
from k3compiler.kernels.base import FAMILIES
from k3compiler.package.manifest import LaunchRecord, ResourceRecord
from k3compiler.package.tuning import MeasuredShape, Measurement, Timing, read_measurement
from k3compiler.passes.lower_to_tile.builder import Kernels
from k3compiler.targets import schedule
from k3compiler.targets.base import find_target
from k3compiler.targets.schedule import schedule_for, set_keys
from k3compiler.targets.tuning import space
from k3compiler.targets.tuning.apply import apply_measurement, entries_of, winners
from k3compiler.targets.tuning.cost import Footprint, Launch, predict_us
from k3compiler.targets.tuning.space import axes_of, points, split
from k3compiler.targets.tuning.work import Work, work_of

pytestmark = pytest.mark.t1

GEMM = {
    "N": 256, "K": 512, "in_cols": 512, "in_offset": 0, "epilogue": "none", "dtype": "bf16",
    "out_dtype": "bf16", "block_m": 64, "block_n": 16, "block_k": 128, "group": 8, "swap": True,
}  # fmt: skip
DIMS = {k: v for k, v in GEMM.items() if not k.startswith("block")}
H200 = find_target("h200")


def line(measurement: Measurement) -> dict[str, Any]:
    (entry,) = entries_of(measurement)
    return entry


def timing(symbol: str, us: float, *, passed: bool = True, spread: float = 0.01, **chosen: int) -> Timing:  # fmt: skip
    times = {"1": us, "8": us + 1} if passed else {}
    spreads = dict.fromkeys(times, spread)
    return Timing(symbol, "d" + symbol, dict(chosen), {"1": us, "8": us}, times, spreads, 1e-3, passed)  # fmt: skip


def measured(*timings: Timing) -> Measurement:
    shape = MeasuredShape("gemm", "decode", DIMS, 3, "now", timings)
    return Measurement("h200", "digest", {"chip": "a chip", "date": "2026-01-01"}, (shape,))


def test_axes_are_those_that_the_kernel_has_and_hold_the_present_value() -> None:
    axes = axes_of("gemm", "decode", GEMM, {"num_warps": 2})
    assert 2 in axes["num_warps"] and "num_stages" not in axes
    assert {"block_m": 64, "block_n": 16, "block_k": 128, "num_warps": 2} in points(axes)
    assert split({"block_m": 64, "num_warps": 4}) == ({"block_m": 64}, {"num_warps": 4})
    assert axes_of("no_such_family", "decode", GEMM, {}) == {}


def test_work_counts_a_product() -> None:
    kernel = Kernels().get(Origin("k3.linear", None, "1"), "gemm", GEMM, {})
    work = work_of(kernel.text)
    assert work.steps == 512 // 128
    assert work.step_bytes == work.staged_bytes == 2 * 128 * (64 + 16)
    assert work.loop_bytes == 4 * work.step_bytes
    assert work.matrix_flops == 2 * 64 * 16 * 512
    assert work.written_bytes == 64 * 16 * 2


def test_parts_of_a_sum_are_no_more_work() -> None:
    sizes = {k: v for k, v in GEMM.items() if k not in ("group", "swap", "block_m")}
    few = {**sizes, "tokens": 16, "block_n": 64, "parts": 4}
    kernel = Kernels().get(Origin("k3.linear", None, "1"), "gemm_few", few, {})
    assert work_of(kernel.text).matrix_flops == 2 * 64 * 16 * 512


def test_cost_prefers_more_in_flight_and_punishes_spills() -> None:
    work = Work(loop_bytes=1 << 20, step_bytes=1 << 14, staged_bytes=1 << 14, steps=64)
    launch = Launch(132, 132 << 20)
    shallow, deep = (Footprint.guess(work, warps=4, stages=n, spec=H200) for n in (2, 4))
    assert predict_us(work, deep, launch, H200) < predict_us(work, shallow, launch, H200)
    spilled = replace(deep, spills=True)
    assert predict_us(work, spilled, launch, H200) > predict_us(work, deep, launch, H200)
    floor_us = (132 << 20) / 4.8e12 * 1e6
    assert predict_us(work, deep, launch, H200) > floor_us


def test_a_program_over_the_chips_memory_does_not_fit() -> None:
    launch, resources = LaunchRecord(4, 3, 300_000), ResourceRecord(64)
    assert not Footprint.of_built(launch, resources).fits(H200)
    assert Footprint.of_built(replace(launch, shared_bytes=1000), resources).programs_at_once(H200) == 8  # fmt: skip


def test_only_what_beats_the_present_by_more_than_noise_wins() -> None:
    now = timing("now", 10.0, block_m=64, num_warps=4)
    fast, same = timing("fast", 8.0, block_m=128, num_warps=4), timing("same", 9.9, block_m=32)
    wrong = timing("wrong", 1.0, passed=False, block_m=16)
    assert [g.winner.symbol for g in winners(measured(now, same, fast, wrong))] == ["fast"]
    assert winners(measured(now, same, wrong)) == []
    assert winners(measured(now, timing("noisy", 8.0, spread=9.0, block_m=128))) == []
    slower_at_8 = replace(fast, us={"1": 1.0, "8": 12.0})
    assert winners(measured(now, slower_at_8)) == []


def test_a_winner_becomes_a_line_that_names_its_shape() -> None:
    now, fast = timing("now", 10.0, block_m=64, num_warps=4), timing("f", 8.0, block_m=128, num_warps=4)  # fmt: skip
    (entry,) = entries_of(measured(now, fast))
    assert entry["set"] == {"block_m": 128, "num_warps": 4}
    assert entry["when"]["N"] == 256 and entry["when"]["phase"] == "decode"
    scheduled = set_keys("gemm", "nvidia")
    assert not scheduled & set(entry["when"]) and "in_offset" not in entry["when"]


def test_applying_twice_replaces_the_line_and_keeps_others(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    path.write_text('[{"family": "embed", "set": {"num_warps": 1}}]')
    now, fast = timing("now", 10.0, block_m=64), timing("f", 8.0, block_m=128)
    apply_measurement(measured(now, fast), path)
    base = json.loads(path.read_text())[1]["over"]
    assert base["block_m"] == 64 and base["swap"] is True
    apply_measurement(measured(replace(fast, symbol="now"), timing("g", 5.0, block_m=32)), path)
    lines = json.loads(path.read_text())
    assert [entry["set"] for entry in lines] == [{"num_warps": 1}, {"block_m": 32}]
    assert lines[1]["over"] == base, "it stands where the line before it stood"


def test_a_line_does_not_count_over_another_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    made = line(measured(timing("now", 10.0, block_m=64), timing("f", 8.0, block_m=128)))
    base = {"family": "gemm", "set": {"block_m": 64, "swap": True, "group": 8}}
    params = {k: v for k, v in DIMS.items() if k not in ("swap", "group")} | {"phase": "decode"}

    def chosen(*entries: dict[str, Any]) -> dict[str, Any]:
        monkeypatch.setattr(schedule, "_entries", lambda vendor: list(entries))
        return schedule_for("gemm", params, "h200")

    assert chosen(base, made)["block_m"] == 128
    other = {"family": "gemm", "set": {"block_m": 32, "swap": True, "group": 8}}
    assert chosen(other, made)["block_m"] == 32
    assert chosen(base, {"family": "gemm", "set": {"form": "x"}}, made)["block_m"] == 64


def test_the_space_names_families_that_there_are() -> None:
    assert set(space._table()) <= set(FAMILIES)


@pytest.mark.parametrize("text", ["{}", "[1]", "not json"])
def test_a_file_that_is_no_table_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "table.json"
    path.write_text(text)
    both = measured(timing("now", 10.0, block_m=64), timing("f", 8.0, block_m=128))
    with pytest.raises(K3Error, match="K3-K022"):
        apply_measurement(both, path)
    assert path.read_text() == text


def test_a_measurement_survives_its_file(tmp_path: Path) -> None:
    path, made = tmp_path / "m.json", measured(timing("now", 10.0, block_m=64))
    path.write_bytes(made.to_bytes())
    assert read_measurement(path) == made
    path.write_text('{"target": "h200"}')
    with pytest.raises(K3Error, match="K3-K022"):
        read_measurement(path)
