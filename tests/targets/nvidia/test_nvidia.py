"""Kernels built for NVIDIA without a GPU: what is in the PTX and the launch records."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from k3compiler.ir.context import print_module
from k3compiler.targets.backend import BuildRequest, BuiltKernel, backend_for
from k3compiler.targets.base import find_target
from k3compiler.targets.build import build_kernels
from tests.targets.every_op import SAMPLES, build, product, scaled
from tests.targets.gpu_programs import ROWS, one_of_each, requests

pytestmark = pytest.mark.t2

SUBSET = ("gemm", "kda_scan", "mla_prefill", "moe_gate_up")


def compile_body(body: object, target: str, **schedule: int) -> BuiltKernel:
    """Builds one body in this process."""
    module = build(body)  # type: ignore[arg-type]
    text = print_module(module, locations=True)
    chosen = {"num_warps": 4, "num_stages": 2, **schedule}
    return backend_for(find_target(target)).compile(BuildRequest("k", text, chosen, op="test"))


def check_kernel(kernel: BuiltKernel, isa: str) -> None:
    """What holds for every NVIDIA kernel."""
    ptx = kernel.files["ptx"].decode()
    assert ptx.startswith(f"// {kernel.symbol.rpartition('_')[0]} [spec 0]\n")
    assert f".visible .entry {kernel.symbol}(" in ptx
    assert re.search(rf"^\.target {isa}$", ptx, re.M)
    assert re.search(r'^\t\.file\t1 "k3compiler/kernels/\w+\.py"', ptx, re.M)
    assert re.search(r"^\t\.loc\t1 \d+ \d+", ptx, re.M)
    assert kernel.files["cubin"].startswith(b"\x7fELF")
    assert kernel.launch.num_warps in (1, 2, 4, 8)
    assert 0 < kernel.resources.registers <= 255
    for data in kernel.files.values():
        assert b"/tmp/" not in data and str(Path.cwd()).encode() not in data


def test_every_family_builds_for_sm_90a(tmp_path: Path) -> None:
    families = tuple(dict.fromkeys(row[0] for row in ROWS))
    wanted = requests(one_of_each(ROWS, families), "h200")
    built = build_kernels(wanted, find_target("h200"), jobs=2, cache_folder=tmp_path)
    assert list(built) == [r.symbol for r in wanted]
    for kernel in built.values():
        check_kernel(kernel, "sm_90a")
    dots = {r.symbol for r in wanted if "tile.dot" in r.tile_text}
    matrix = {s for s, k in built.items() if k.resources.instructions}
    assert dots == matrix


def test_a_subset_builds_for_sm_103a(tmp_path: Path) -> None:
    wanted = requests(one_of_each(ROWS, SUBSET), "gb300")
    for kernel in build_kernels(
        wanted, find_target("gb300"), jobs=2, cache_folder=tmp_path
    ).values():
        check_kernel(kernel, "sm_103a")


@pytest.mark.nightly
@pytest.mark.parametrize("target", ["h200", "b200", "gb300"])
def test_every_variant_builds(tmp_path: Path, target: str) -> None:
    spec = find_target(target)
    for kernel in build_kernels(requests(ROWS, target), spec, cache_folder=tmp_path).values():
        check_kernel(kernel, spec.isa)


def test_every_op_builds_for_sm_90a() -> None:
    for name, (body, _, _) in SAMPLES.items():
        kernel = compile_body(body, "h200")
        assert b".entry k(" in kernel.files["ptx"], name


@pytest.mark.parametrize(
    ("target", "rows", "instruction"),
    [("h200", 64, "wgmma"), ("gb300", 64, "tcgen05.mma"), ("h200", 16, "mma.sync")],
)
def test_bf16_products_use_the_matrix_unit(target: str, rows: int, instruction: str) -> None:
    kernel = compile_body(product("bf16", "bf16", rows, 32), target)
    assert set(kernel.resources.instructions) == {instruction}


def test_parts_of_a_sum_go_to_a_warp_each() -> None:
    params = {"N": 896, "K": 7168, "in_cols": 7168, "tokens": 8, "dtype": "bf16"}
    blocks = {"block_n": 8, "block_k": 1024, "parts": 8}
    (request,) = requests([("gemm_few", {**params, **blocks}, {})], "h200")
    schedule = {"num_warps": 8, "num_stages": 4}
    kernel = backend_for(find_target("h200")).compile(replace(request, schedule=schedule))
    ptx = kernel.files["ptx"].decode()
    assert kernel.resources.instructions == {"mma.sync": 1024 // 8 // 16}  # of a warp, in the loop
    assert "cp.async.cg.shared.global" in ptx and "ld.global" not in ptx
    assert kernel.resources.spill_bytes == 0


@pytest.mark.parametrize(
    ("target", "form", "pattern"),
    [
        ("gb300", ("e4m3", "e2m1", 128, 32), r"tcgen05\.mma\S*kind::mxf8f6f4\.block_scale"),
        ("gb300", ("e2m1", "bf16", 128, 32), r"tcgen05\.mma\S*kind::f16"),
        ("h200", ("e2m1", "bf16", 64, 16), r"wgmma\.mma_async\S*f32\.bf16\.bf16"),
        ("h200", ("e2m1", "e4m3", 64, 16), r"wgmma\.mma_async\S*f32\.bf16\.bf16"),
    ],
)
def test_mx_products_use_the_matrix_unit(
    target: str, form: tuple[str, str, int, int], pattern: str
) -> None:
    kernel = compile_body(scaled(*form), target)
    assert re.search(pattern, kernel.files["ptx"].decode())


def test_tf32_products_use_the_matrix_unit_and_ieee_ones_do_not() -> None:
    tf32 = compile_body(product("f32", "tf32", 64, 32), "h200").files["ptx"].decode()
    ieee = compile_body(product("f32", "ieee", 64, 32), "h200").files["ptx"].decode()
    assert "wgmma.mma_async.sync.aligned.m64n32k8.f32.tf32.tf32" in tf32
    assert "mma" not in ieee and "fma.rn.f32" in ieee
