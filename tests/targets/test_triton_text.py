"""The Triton IR text: which masks and widths, and where every op says it is from."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from k3compiler.dialects.tile.builder import Program
from k3compiler.targets.triton_ir.emitter import EMIT, Form, NextGrid, emit_triton
from tests.targets.every_op import SAMPLES, build

pytestmark = pytest.mark.t1


def emit(body: Callable[[Program], None]) -> str:
    return emit_triton(build(body), Form(has_tf32=True))


def ops(text: str, name: str) -> list[str]:
    """The lines of one op."""
    return [
        line.strip()
        for line in text.splitlines()
        if re.search(rf"(^|= ){re.escape(name)} ", line.strip())
    ]


def copy(rows: int | str, at: str, grid: str) -> Callable[[Program], None]:
    """Copies a [16, 64] tile of a [rows, 128] buffer; ``at`` says which."""

    def body(p: Program) -> None:
        x, y = p.buffer("x", "f32", (rows, 128)), p.buffer("y", "f32", (16, 64), "w")
        row = p.program_id(0) * 16
        column = {"const": 64, "pid": p.program_id(1) * 64, "scalar": p.scalar("column")}[at]
        y.store((0, 0), x.load((row, column), (16, 64)))
        p.grid(*grid.split(";"))

    return body


def test_a_mask_is_left_out_where_it_always_holds() -> None:
    (load,) = ops(emit(copy(64, "const", "4")), "tt.load")
    assert load.count(",") == 0
    (store,) = ops(emit(copy(64, "const", "4")), "tt.store")
    assert store.count(",") == 1


@pytest.mark.parametrize(
    ("rows", "at", "grid", "conditions"),
    [
        (64, "pid", "4;2", []),  # the grid bounds both
        (64, "const", "5", ["slt"]),  # a row past the end
        ("T", "const", "cdiv(T, 16)", ["slt"]),
        (64, "pid", "4;3", ["slt"]),
        (64, "scalar", "4", ["sge", "slt"]),  # a scalar may be anything
        (64, "pid", "4;cdiv(T, 2)", ["slt"]),
    ],
)
def test_a_mask_stays_where_it_may_fail(
    rows: int | str, at: str, grid: str, conditions: list[str]
) -> None:
    text = emit(copy(rows, at, grid) if "T" not in grid or rows == "T" else _with_symbol(at, grid))
    assert re.findall(r"arith\.cmpi (\w+),", text) == conditions


def _with_symbol(at: str, grid: str) -> Callable[[Program], None]:
    def body(p: Program) -> None:
        p.buffer("unused", "f32", ("T",))
        copy(64, at, grid)(p)

    return body


def test_a_row_of_its_own_needs_no_mask_but_a_limit_does() -> None:
    def body(p: Program) -> None:
        x, y = p.buffer("x", "bf16", ("T", 96)), p.buffer("y", "bf16", ("T", 128), "w")
        row = p.program_id(0)
        y.store((row, 0), x.load((row, 16), (1, 128), limits=(row + 1, 90)))
        p.grid("T")

    text = emit(body)
    assert re.findall(r"arith\.cmpi (\w+),", text) == ["slt"]
    assert "arith.constant 90 : i32" in text and "arith.constant 96 : i32" not in text


def test_a_loop_over_a_multiple_needs_no_mask() -> None:
    def loop(stop: int) -> str:
        def body(p: Program) -> None:
            x, y = p.buffer("x", "f32", (128,)), p.buffer("y", "f32", (64,), "w")
            with p.loop(0, stop, 64, carry=[p.zeros((64,))]) as (k, (acc,)):
                p.yield_(acc + x.load((k,), (64,)))
            y.store((0,), p.results()[0])
            p.grid(1)

        return emit(body)

    assert "arith.cmpi" not in loop(128)
    assert "arith.cmpi" in loop(130)


def test_bases_are_64_bits_wide_and_tiles_32_where_they_fit() -> None:
    text = emit(copy("T", "const", "cdiv(T, 16)"))
    assert "tt.addptr %arg0, %" in text and ": !tt.ptr<f32>, i64" in text
    assert "tensor<16x64x!tt.ptr<f32>>, tensor<16x64xi32>" in text


def test_gathered_rows_and_symbolic_strides_are_64_bits_wide() -> None:
    assert "tensor<16x16x!tt.ptr<bf16>>, tensor<16x16xi64>" in emit(SAMPLES["gathers"][0])

    def body(p: Program) -> None:
        x, y = p.buffer("x", "f32", (8, "P")), p.buffer("y", "f32", (8,), "w")
        y.store((0,), x.load((0, 0), (8,), dims=(0,)))
        p.grid(1)

    assert "tensor<8x!tt.ptr<f32>>, tensor<8xi64>" in emit(body)


def test_every_op_has_a_location_of_its_kernel() -> None:
    from k3compiler.kernels.base import build_program

    params = {
        "cols": 100,
        "block": 128,
        "eps": 1e-5,
        "dtype": "bf16",
        "in_cols": 130,
        "in_offset": 20,
    }
    module = build_program("rms_norm", params, symbol="k", label="k3.rms_norm [spec 2]")
    text = emit_triton(module, Form(has_tf32=True))
    for line in text.splitlines():
        assert "loc(" in line or line.endswith("{") or line.strip() in ("", "})")
    assert "loc(unknown)" not in text
    assert re.search(
        r'= loc\("k3\.rms_norm \[spec 2\]"\("k3compiler/kernels/norm\.py":\d+:\d+\)\)', text
    )


def test_samples_use_every_op_that_can_be_emitted() -> None:
    used: set[str] = set()

    def visit(block: object) -> None:
        for op in block.operations:  # type: ignore[attr-defined]
            used.add(op.operation.name)
            for region in op.operation.regions:
                for inner in region.blocks:
                    visit(inner)

    for body, _, _ in SAMPLES.values():
        visit(build(body).body)
    assert set(EMIT) - used == set()


def early(next_grid: NextGrid) -> list[str]:
    """Where a program that sums a weight and an activation waits, and where it lets the next grid start."""

    def body(p: Program) -> None:
        w, x = p.weight("w", "f32", (64,)), p.buffer("x", "f32", (64,))
        y = p.buffer("y", "f32", (1,), "w")
        weights = w.load((0,), (64,))
        y.store((0,), (weights * x.load((0,), (64,))).sum(0))
        p.grid(1)

    text = emit_triton(build(body), Form(has_tf32=True, has_early_start=True, next_grid=next_grid))
    words = {"grid_dependency_wait": "wait", "launch_dependents": "next", "tt.reduce": "sum"}
    words |= {"tt.load": "load", "tt.store": "store"}
    found = [w for line in text.splitlines() for key, w in words.items() if key in line]
    return [w for i, w in enumerate(found) if i == 0 or w != found[i - 1]]


def test_weights_are_loaded_before_the_wait_and_the_next_grid_starts_where_the_schedule_says() -> (
    None
):
    assert early("end") == ["load", "wait", "load", "sum", "store", "next"]
    assert early("loaded") == ["load", "wait", "load", "sum", "next", "store"]
    assert early("wait") == ["load", "wait", "next", "load", "sum", "store"]
    assert early("start") == ["next", "load", "wait", "load", "sum", "store"]


def test_reductions_side_by_side_are_one() -> None:
    def body(p: Program) -> None:
        x, y = p.buffer("x", "f32", (16, 64)), p.buffer("y", "f32", (3, 16), "w")
        v = x.load((0, 0), (16, 64))
        w = v * v
        sums, squares, top = v.sum(1), w.sum(1), v.max(1)
        last = v.sum(0).sum(0) + sums
        for i, row in enumerate((last, squares, top)):
            y.store((i, 0), row.expand(0))
        p.grid(1)

    lines = [line.strip() for line in emit(body).splitlines() if '"tt.reduce"' in line]
    assert [line.count(", %") for line in lines] == [2, 0, 0]
