"""The expert matrices through FlyDSL: what is emitted, what is refused, and what the emulator computes."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from k3compiler.check.case import judge
from k3compiler.check.emulator.code_object import CodeObject
from k3compiler.check.emulator.kernel import ORDERS
from k3compiler.errors import K3Error
from k3compiler.targets import backend as backend_module
from k3compiler.targets.amd.flydsl import adapter
from k3compiler.targets.amd.flydsl.adapter import KernelBuilder, link
from k3compiler.targets.base import find_target
from k3compiler.targets.build import build_kernels
from k3compiler.targets.schedule import schedule_for
from tests.check.emulator.code_objects import needs_emulator
from tests.targets.amd.flydsl_kernels import (
    build,
    case_of,
    params_of,
    record_of,
    request_of,
    run,
    steady_loop,
)

pytestmark = [
    pytest.mark.t2,
    pytest.mark.skipif(
        importlib.util.find_spec("flydsl") is None, reason="flydsl is not installed"
    ),
]

FAMILIES = ("moe_gate_up", "moe_down")
FORMATS = ("a16w4", "a8w4")
# instructions a wave and 256 of K at 64 x 128, epilogues not counted
MOST = {"a16w4": 280, "a8w4": 95}
PRODUCTS = {"a16w4": 64, "a8w4": 16}


# -- what is emitted -----------------------------------------------------------------------------------
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_steady_loop_is_short_and_never_waits_for_everything(family: str, form: str) -> None:
    built = build(family, params_of(family, format=form, width=3584, inner=3072))
    loop = steady_loop(built.files["s"].decode())
    steps = sum("mfma" in line for line in loop) // PRODUCTS[form]
    assert steps >= 1 and len(loop) <= MOST[form] * steps
    assert not [line for line in loop if re.search(r"vmcnt\(0\)", line)]
    assert sum(line.startswith("s_barrier") for line in loop) == steps
    copies = [line for line in loop if line.startswith("buffer_load") and " lds" in line]
    assert len(copies) == steps * (8 if form == "a16w4" else 4)
    assert built.resources.spill_bytes == 0 and built.resources.registers <= 128


@pytest.mark.parametrize("rows", [16, 32, 64, 128])
@pytest.mark.parametrize("inner", [3072, 384, 192])
def test_every_block_and_expert_width_fits(rows: int, inner: int) -> None:
    for family in FAMILIES:
        params = params_of(family, block_rows=rows, inner=inner, width=3584, experts=896)
        built = build(family, params)
        note = CodeObject(built.files["hsaco"]).kernels[family]
        assert built.launch.shared_bytes == rows * 1024 <= 160 << 10 and note.lds_bytes == 0
        assert note.vgpr_spills == 0 and note.scratch_bytes == 0


def test_the_same_bytes_every_time_and_from_the_cache(tmp_path: Path) -> None:
    request = request_of("moe_down", params_of("moe_down"))
    spec = find_target("mi355x")
    first = build_kernels([request], spec, jobs=1, cache_folder=tmp_path / "a")["moe_down"]
    again = build_kernels([request], spec, jobs=1, cache_folder=tmp_path / "a")["moe_down"]
    other = build_kernels([request], spec, jobs=1, cache_folder=tmp_path / "b")["moe_down"]
    assert first == again == other
    assert first.files["s"].startswith(b"; moe_down")
    for data in first.files.values():
        assert b"/tmp/" not in data and str(Path.cwd()).encode() not in data


def test_arguments_are_those_of_the_tile_program() -> None:
    built = build("moe_gate_up", params_of("moe_gate_up"))
    note = CodeObject(built.files["hsaco"]).kernels["moe_gate_up"]
    record = record_of("moe_gate_up", params_of("moe_gate_up"), built)
    given = [a.kind for a in note.args if not a.kind.startswith("hidden_")]
    want = ["global_buffer" if a.kind == "buffer" else "by_value" for a in record.args]
    assert given == want


def test_the_schedule_chooses_by_shape() -> None:
    def form(family: str, target: str = "mi355x", **changed: Any) -> Any:
        return schedule_for(family, params_of(family, **changed), target).get("form")

    assert form("moe_gate_up", width=3584, inner=3072) == "flydsl"
    assert form("moe_down", width=3584, inner=192) == "flydsl"
    assert form("moe_gate_up", width=96, inner=64) is None  # the nano model
    assert form("moe_down", format="plain") is None
    assert form("moe_down", format="a8w4", width=3584, inner=192) is None
    assert form("moe_down", "mi300x", width=3584, inner=3072) is None


# -- what is refused -----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"format": "plain"}, "format a16w4 or a8w4"),
        ({"inner": 512, "width": 320}, "N a multiple of block_n, not 320 of 128"),
        ({"format": "a8w4", "inner": 192}, "K a multiple of 256 for a8w4"),
        ({"out_dtype": "f32"}, "bf16 activations"),
    ],
)
def test_shapes_it_is_not_for_are_refused_by_name(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(K3Error, match=re.escape(words)) as caught:
        build("moe_down", params_of("moe_down", **changed))
    assert caught.value.code == "K3-T002" and "moe_down (moe.test" in caught.value.where


def test_mi300x_is_refused_by_what_it_lacks() -> None:
    with pytest.raises(K3Error, match="gfx942 has no scaled conversions"):
        build("moe_down", params_of("moe_down"), "mi300x")


def test_another_flydsl_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter, "flydsl_version", lambda: "0.6.1")
    with pytest.raises(K3Error, match=r"(?s)flydsl 0\.5\.x.*0\.6\.1") as caught:
        build("moe_down", params_of("moe_down"))
    assert caught.value.code == "K3-T003"


def test_an_error_that_only_llvm_prints_is_an_error() -> None:
    """FlyDSL's pass succeeds on math.tanh, says "error:" on standard error, and its kernel yields NaN."""
    b = KernelBuilder("k", ["!llvm.ptr<1>"], threads=64)
    (pointer,) = b.arguments
    b.store(b.op("llvm.intr.tanh", (b.load(pointer, "f32"),), "f32"), pointer)
    with pytest.raises(RuntimeError, match="error:"):
        b.assembly("gfx950")


def test_an_abort_in_the_worker_names_the_op(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = "tests.targets.fake_backends:ScaledProductOnOldChip"
    monkeypatch.setitem(backend_module.BACKENDS, "hip", fake)  # type: ignore[arg-type]
    request = request_of("moe_down", params_of("moe_down"))
    with pytest.raises(K3Error, match="LLVM ERROR: Cannot select") as caught:
        build_kernels([request], find_target("mi355x"), jobs=1, cache_folder=tmp_path)
    assert caught.value.code == "K3-T005"
    assert "kernel moe_down (moe.test" in caught.value.where


# -- what they compute ---------------------------------------------------------------------------------
SHAPES: list[dict[str, Any]] = [
    {"inner": 768, "width": 768, "block_rows": 16},
    {"inner": 768, "width": 768, "block_rows": 16, "format": "a8w4"},
    {"inner": 256, "width": 256},
    {"inner": 256, "width": 512, "format": "a8w4"},
    {"inner": 256, "width": 256, "block_rows": 128},
    {"inner": 384, "width": 384, "block_rows": 32},
    {"inner": 192, "width": 640, "block_rows": 16},
]


MX_SHAPES: list[dict[str, Any]] = [
    {"inner": 256, "block_n": 64},  # a group of 32 columns in two waves
    {"inner": 256, "block_n": 128, "block_rows": 16},  # in one
    {"inner": 192, "block_n": 64, "block_rows": 128},
]


@pytest.mark.parametrize("changed", SHAPES, ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_kernels_agree_with_the_reference_in_both_orders(
    family: str, changed: dict[str, Any]
) -> None:
    needs_emulator()
    params = params_of(family, **changed)
    built, case = build(family, params), case_of(family, params)
    for order in ORDERS:
        results = run(built.files["hsaco"], record_of(family, params, built), case, order)
        for verdict in judge(case, results):
            assert verdict.passed and verdict.error < 2.5e-3, verdict  # rounding to bf16 is 1.7e-3


@pytest.mark.parametrize("changed", MX_SHAPES, ids=str)
def test_the_first_product_leaves_mxfp8(changed: dict[str, Any]) -> None:
    """Scales and elements of h are those of quantize_mxfp8 of the f32 result, but for values on a rounding edge."""
    needs_emulator()
    params = params_of("moe_gate_up", format="a8w4", dtype="e4m3", **changed)
    built, case = build("moe_gate_up", params), case_of("moe_gate_up", params)
    for order in ORDERS:
        record = record_of("moe_gate_up", params, built)
        for verdict in judge(case, run(built.files["hsaco"], record, case, order)):
            assert verdict.passed and verdict.error < 1e-3, verdict


def test_a_row_of_nan_gets_the_nan_scale_and_no_other() -> None:
    needs_emulator()
    params = params_of("moe_gate_up", format="a8w4", dtype="e4m3", inner=256, block_rows=16)
    built, case = build("moe_gate_up", params), case_of("moe_gate_up", params)
    arguments: Any = dict(case.arguments)
    arguments["x_scale"] = arguments["x_scale"].copy()
    arguments["x_scale"][2, 1] = 255
    record = record_of("moe_gate_up", params, built)
    got = run(built.files["hsaco"], record, replace(case, arguments=arguments))["h_scale"]
    pairs = arguments["pairs"]
    is_poisoned = (pairs >= 0) & (pairs // params["top_k"] == 2)
    is_other = (pairs >= 0) & ~is_poisoned & case.where["h_scale"][:, 0]
    assert is_poisoned.any() and (got[is_poisoned] == 255).all()
    np.testing.assert_array_equal(got[is_other], case.expected["h_scale"][is_other])


def test_a_missing_barrier_of_the_scales_shows() -> None:
    needs_emulator()
    params = params_of("moe_gate_up", format="a8w4", dtype="e4m3", inner=256, block_rows=16)
    built, case = build("moe_gate_up", params), case_of("moe_gate_up", params)
    text = built.files["s"].decode()
    at = text.rindex("\ts_barrier\n")
    code = link(text[:at] + text[at:].replace("\ts_barrier\n", "\ts_nop 0\n"), "gfx950")
    record = record_of("moe_gate_up", params, built)
    verdicts = [v for order in ORDERS for v in judge(case, run(code, record, case, order))]
    assert not all(v.passed for v in verdicts)


def test_one_token() -> None:
    needs_emulator()
    params = params_of("moe_gate_up", block_rows=16)
    built, case = build("moe_gate_up", params), case_of("moe_gate_up", params, tokens=1)
    (verdict,) = judge(
        case, run(built.files["hsaco"], record_of("moe_gate_up", params, built), case)
    )
    assert verdict.passed, verdict


def small(family: str, form: str) -> tuple[dict[str, Any], Any]:
    params = params_of(family, format=form, inner=256, width=256, block_rows=16)
    return params, case_of(family, params)


@pytest.mark.parametrize("form", FORMATS)
def test_scale_255_is_nan_in_its_row_only_and_0_is_a_power_of_two(form: str) -> None:
    needs_emulator()
    params, case = small("moe_down", form)
    arguments: Any = {
        k: v.copy() if isinstance(v, np.ndarray) else v for k, v in case.arguments.items()
    }
    scale = arguments["s2"]
    scale[:, 5, 3], scale[:, 37, 7], scale[:, 22, :] = 255, 255, 0
    built = build("moe_down", params)
    record = record_of("moe_down", params, built)
    got = run(built.files["hsaco"], record, replace(case, arguments=arguments))["y"].astype(
        np.float32
    )
    want = run(built.files["hsaco"], record, case)["y"].astype(np.float32)
    written = ~np.isnan(want)
    columns = np.isnan(got) & written
    assert columns[:, [5, 37]].sum() == written[:, [5, 37]].sum()
    assert not np.delete(columns, [5, 37], axis=1).any()
    rest = np.delete(np.arange(256), [5, 22, 37])
    np.testing.assert_array_equal(got[:, rest][written[:, rest]], want[:, rest][written[:, rest]])
    tiny = got[:, 22][written[:, 22]]
    assert tiny.any() and np.abs(tiny).max() < 2.0**-115


@pytest.mark.parametrize("family", FAMILIES)
def test_triton_and_flydsl_agree(family: str) -> None:
    needs_emulator()
    params, case = small(family, "a16w4")
    outputs: list[Any] = []
    for form in ("flydsl", "triton"):
        built = build(family, params, form=form)
        (name,) = case.expected
        outputs.append(
            run(built.files["hsaco"], record_of(family, params, built, form), case)[name]
        )
    got, want = (o.astype(np.float32)[~np.isnan(outputs[1].astype(np.float32))] for o in outputs)
    assert len(got) and np.linalg.norm(got - want) <= 2e-3 * np.linalg.norm(want)


def test_sums_are_exact_before_rounding() -> None:
    """One-hot rows pick single weights out: bf16 of share times weight, to the bit."""
    needs_emulator()
    params, case = small("moe_down", "a16w4")
    arguments: Any = {
        k: v.copy() if isinstance(v, np.ndarray) else v for k, v in case.arguments.items()
    }
    arguments["x"][...] = 0
    arguments["x"][:, 77] = ml_dtypes.bfloat16(1)
    arguments["weights"][...] = 1.0
    built = build("moe_down", params)
    got = run(
        built.files["hsaco"],
        record_of("moe_down", params, built),
        replace(case, arguments=arguments),
    )["y"]
    from k3compiler.dtypes import unpack_mxfp4

    dense = np.stack(
        [unpack_mxfp4(w, s) for w, s in zip(arguments["w2"], arguments["s2"], strict=True)]
    )
    columns = dense[:, :, 77].astype(ml_dtypes.bfloat16)
    owners = np.repeat(arguments["block_expert"], 16)
    for row, pair in enumerate(arguments["pairs"]):
        if pair >= 0 and owners[row] >= 0:
            np.testing.assert_array_equal(got[pair], columns[owners[row]])


# -- sharpness -----------------------------------------------------------------------------------------
FAULTS = [
    (r"s_waitcnt vmcnt\(\d+\)\n(\ts_barrier)", r"\1"),  # the copies' wait
    (r"\ts_barrier\n", r"\ts_nop 0\n"),
    (r"(v_lshlrev_b32_e32 v\d+), 23,", r"\1, 22,"),  # a scale's shift
]


@pytest.mark.parametrize(("pattern", "by"), FAULTS, ids=["wait", "barrier", "scale shift"])
def test_a_fault_in_the_text_shows(pattern: str, by: str) -> None:
    needs_emulator()
    params = params_of("moe_down", block_rows=16, width=256)
    built, case = build("moe_down", params), case_of("moe_down", params)
    text = built.files["s"].decode()
    changed = re.sub(pattern, by, text)
    assert changed != text
    record = record_of("moe_down", params, built)
    code = link(changed, "gfx950")
    verdicts = [v for order in ORDERS for v in judge(case, run(code, record, case, order))]
    assert not all(v.passed for v in verdicts)
