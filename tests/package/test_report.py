"""Summary rows and the report page of a package."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import pytest

from k3compiler.package.manifest import (
    BufferRecord,
    CallStep,
    CollectiveStep,
    FloorRecord,
    LaunchRecord,
    LaunchStep,
    Manifest,
    Plan,
    ResourceRecord,
    StorageRecord,
)
from k3compiler.package.report import render_report
from k3compiler.package.summary import (
    Point,
    format_count,
    format_layers,
    kernel_rows,
    layer_groups,
    markdown_table,
    plan_symbols,
    storage_bytes,
)
from k3compiler.package.timeline import LAUNCH_US, Clock, end_us, timeline
from tests.package import package_samples as samples

POINT = Point(tokens=6, seqs=2, context=100)


def test_a_timeline_begins_where_the_branches_end() -> None:
    """Two kernels beside each other and one behind both; the last is empty at this size."""
    kernel = samples.kernels()[1]
    kernel = replace(kernel, floor=FloorRecord(bytes="R*1000", flops=0))

    def head(stream: int, *waits: int, rows: str = "R") -> LaunchStep:
        args = ("x", "logit_rows", "w:head", "logits", "T", "R")
        return LaunchStep("head", args, (rows, "4", "1"), "k3.head", 3, stream, waits)

    steps = (head(0), head(1), head(0, 1), head(0, rows="R-2"))
    plan = replace(samples.plan("decode"), steps=steps)
    clock = Clock(1e9, {})
    manifest = samples.manifest(kernels=(kernel,))
    slots = timeline(manifest, plan, POINT, clock)
    assert [s.index for s in slots] == [0, 1, 2]
    assert [s.begin_us for s in slots] == [0, 0, 2 + LAUNCH_US]
    assert [s.floor_us for s in slots] == [2, 2, 2]
    slots = timeline(manifest, plan, POINT, Clock(1e9, {"head": 7.0}))
    assert end_us(slots) == 14 and all(s.is_measured for s in slots)
    page = render_report(manifest, [plan], {"decode": POINT}, clock)
    assert "Timeline: 3 launches, 0.01 ms" in page and "layer 3 (1): 3 launches, 8.0 µs" in page
    assert "Timeline" not in render_report(manifest, [plan], {"decode": POINT})


def measured_manifest() -> Manifest:
    embed, head, feed = samples.kernels()
    embed = replace(
        embed,
        floor=FloorRecord(bytes="T*8", flops="T*2"),
        launch=LaunchRecord(shared_bytes=49152),
        resources=ResourceRecord(registers=96, spill_bytes=8, instructions={"wgmma": 4, "mma": 1}),
        equation="7.1",
    )
    head = replace(head, floor=FloorRecord(bytes="unbound*2", flops=7))
    return samples.manifest(kernels=(embed, head, feed), page_tokens=64)


def layered_plan() -> Plan:
    """Three layers: 0 and 2 alike, 1 with a library call and a collective."""

    def embed(layer: int | None) -> LaunchStep:
        args = ("tokens", "w:table", "x", "T//2", "f:1.5")
        return LaunchStep(
            "embed", args, ("T//2", "1", "1"), "k3.embed", layer, stream=1, waits=(0, 1, 2)
        )

    return Plan(
        phase="prefill",
        inputs=("tokens",),
        outputs=("logits",),
        buffers=(
            BufferRecord("a", "f32", ("T", 4), "workspace", 0, 0, 2),
            BufferRecord("b<&", "bf16", ("T", 4), "workspace", 0, 3, 4),
        ),
        storage=(StorageRecord(0, "T*16"), StorageRecord(1, "NB*2")),
        steps=(
            embed(None),
            embed(0),
            embed(1),
            CallStep("gemm", ("x", "w:table", "y"), "k3.linear", 1),
            CollectiveStep("all_reduce", ("y",), "T*4", "tp", "comm.all_reduce", 1),
            embed(2),
        ),
        symbols={"NB": "cdiv(T*2, 4) + 3"},
    )


def test_point_binds_the_symbols() -> None:
    bound = POINT.symbols(samples.manifest(page_tokens=64, chunk_tokens=64))
    assert bound["T"] == 6 and bound["S"] == bound["R"] == bound["NS"] == 2
    assert bound["P"] == 2 and bound["PAGES"] == 5 and bound["SLOTS"] == 3
    assert bound["KV"] == 206 and bound["NC"] == 2


def test_kernel_rows_evaluate_floors_through_the_launch() -> None:
    (row,) = kernel_rows(measured_manifest(), layered_plan(), POINT)
    assert row.symbol == "embed" and row.num_launches == 4 and row.layers == "0-2"
    assert (row.registers, row.shared_bytes, row.spill_bytes) == (96, 49152, 8)
    assert row.instructions == "mma x1 wgmma x4"
    assert (row.floor_bytes, row.floor_flops) == (3 * 8, 3 * 2)  # the launch passes T//2 as T


def test_a_floor_of_a_run_time_size_is_left_out() -> None:
    rows = {
        row.symbol: row for row in kernel_rows(measured_manifest(), samples.plan("decode"), POINT)
    }
    assert rows["embed"].floor_bytes == 48
    assert rows["head"].floor_bytes is None and rows["head"].floor_flops is None


def test_markdown_has_a_line_per_kernel() -> None:
    lines = markdown_table(measured_manifest(), layered_plan(), POINT).splitlines()
    assert lines[0] == "## cpu (x86-64), float32, prefill"
    assert lines[-1].startswith("| embed | k3.embed | 7.1 | 0-2 | 4 | 96 | 49.2 kB | 8 B |")


def test_workspace_uses_the_plans_own_symbols() -> None:
    symbols = plan_symbols(samples.manifest(), layered_plan(), POINT)
    assert symbols["NB"] == 6
    assert storage_bytes(layered_plan(), symbols) == 6 * 16 + 6 * 2


def test_like_layers_are_one_group() -> None:
    groups = layer_groups(layered_plan())
    assert [group.title for group in groups] == ["outside the layers", "layers 0, 2", "layer 1"]
    assert [len(group.steps) for group in groups] == [1, 1, 3]


@pytest.mark.parametrize(
    ("layers", "text"), [([], "-"), ([3], "3"), ([0, 1, 2, 5], "0-2, 5"), ([4, 4, 2], "2, 4")]
)
def test_format_layers(layers: list[int], text: str) -> None:
    assert format_layers(layers) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (0, "0 B"), (999, "999 B"), (1530, "1.53 kB"), (2 * 10**15, "2 PB")],
)
def test_format_count(value: int | None, text: str) -> None:
    assert format_count(value, "B") == text


def elements(page: str, tag: str) -> list[Any]:
    body = page.split("\n", 1)[1].replace('<meta charset="utf-8">', "")
    return list(ElementTree.fromstring(body).iter(tag))


def test_the_page_draws_steps_and_lifetimes() -> None:
    page = render_report(measured_manifest(), [layered_plan()])
    titles = [title.text or "" for title in elements(page, "title")]
    assert sum("k3.embed: embed" in text for text in titles) == 3  # one per group
    assert any("call gemm" in text for text in titles)
    assert any("T*4 elements over tp" in text for text in titles)
    assert any("stream 1, waits for 0-2" in text for text in titles)
    bars = [text for text in titles if "steps " in text]
    assert bars == ["a: f32 [T x 4], steps 0-2", "b<&: bf16 [T x 4], steps 3-4"]
    cells = [cell.text for cell in elements(page, "td")]
    assert "96" in cells and "49.2 kB" in cells and "mma x1 wgmma x4" in cells


def test_the_page_is_deterministic_and_self_contained() -> None:
    page = render_report(measured_manifest(), [samples.plan("prefill"), samples.plan("decode")])
    assert page == render_report(
        measured_manifest(), [samples.plan("prefill"), samples.plan("decode")]
    )
    assert not any(
        word in page for word in ("<script", "http:", "https:", "src=", "href=", "@import")
    )
