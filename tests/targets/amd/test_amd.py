"""Kernels built for AMD without a GPU; where the emulator is at hand, also what they compute."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from k3compiler.check.emulator.kernel import EmulatedKernel
from k3compiler.ir.context import print_module
from k3compiler.ir.tile_interpreter import run_tile_program
from k3compiler.ir.tile_program import describe
from k3compiler.package.expr import compile_exprs
from k3compiler.targets.backend import BuildRequest, BuiltKernel, backend_for
from k3compiler.targets.base import find_target
from k3compiler.targets.build import build_kernels
from tests.check.emulator.code_objects import needs_emulator
from tests.targets.amd.emulate import emulate
from tests.targets.amd.flydsl_kernels import params_of
from tests.targets.every_op import SAMPLES, build, product, scaled
from tests.targets.gpu_programs import ROWS, one_of_each, requests

pytestmark = pytest.mark.t2

SUBSET = ("gemm", "kda_scan", "mla_prefill", "moe_gate_up")


def compile_body(body: Any, target: str) -> BuiltKernel:
    """Builds one body in this process."""
    text = print_module(build(body), locations=True)
    request = BuildRequest("k", text, {"num_warps": 4, "num_stages": 2}, op="test")
    return backend_for(find_target(target)).compile(request)


def check_kernel(kernel: BuiltKernel, isa: str) -> None:
    """What holds for every AMD kernel."""
    assembly = kernel.files["s"].decode()
    assert assembly.startswith(f"; {kernel.symbol.rpartition('_')[0]} [spec 0]\n")
    assert re.search(rf'^\t\.amdgcn_target "\S+-{isa}"', assembly, re.M)
    assert f".globl\t{kernel.symbol}" in assembly
    assert re.search(r'^\t\.file\t1 "k3compiler/kernels" "\w+\.py"', assembly, re.M)
    assert kernel.files["hsaco"].startswith(b"\x7fELF")
    assert kernel.resources.registers > 0
    for data in kernel.files.values():
        assert b"/tmp/" not in data and str(Path.cwd()).encode() not in data


def test_a_subset_builds_for_gfx950(tmp_path: Path) -> None:
    wanted = requests(one_of_each(ROWS, SUBSET), "mi355x")
    built = build_kernels(wanted, find_target("mi355x"), jobs=2, cache_folder=tmp_path)
    for kernel in built.values():
        check_kernel(kernel, "gfx950")
    dots = {r.symbol for r in wanted if "tile.dot" in r.tile_text}
    assert dots == {s for s, k in built.items() if k.resources.instructions}


@pytest.mark.nightly
@pytest.mark.parametrize("target", ["mi300x", "mi355x"])
def test_every_family_builds(tmp_path: Path, target: str) -> None:
    spec = find_target(target)
    for kernel in build_kernels(requests(ROWS, target), spec, cache_folder=tmp_path).values():
        check_kernel(kernel, spec.isa)


def test_products_use_the_matrix_unit() -> None:
    plain = compile_body(product("bf16", "bf16", 64, 32), "mi355x")
    mx = compile_body(scaled("e4m3", "e2m1", 64, 32), "mi355x")
    old = compile_body(scaled("e4m3", "e2m1", 64, 32), "mi300x")
    assert set(plain.resources.instructions) == {"mfma"}
    assert set(mx.resources.instructions) == {"mfma_scale"}
    assert set(old.resources.instructions) == {"mfma"}


# -- what they compute -------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "params", "sizes"), ROWS, ids=[f"{r[0]}-{i}" for i, r in enumerate(ROWS)]
)
def test_kernel_agrees_with_the_reference_on_the_emulator(
    family: str, params: dict[str, Any], sizes: dict[str, int]
) -> None:
    needs_emulator()
    for verdict in emulate(family, params, sizes, "mi355x"):
        assert verdict.passed, verdict


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLES)
def test_every_op_means_what_the_interpreter_says(name: str) -> None:
    needs_emulator()
    body, arguments, tolerance = SAMPLES[name]
    module = build(body)
    info = describe(module)
    want = dict(arguments(np.random.default_rng(1)))
    got = {key: value.copy() for key, value in want.items()}
    known = info.symbols_from(want)
    grid = compile_exprs(info.grid)(known)
    run_tile_program(module, want, grid)
    built = compile_body(body, "mi355x")
    values = [got.get(a.name, known.get(a.name)) for a in info.arguments]
    kernel = EmulatedKernel(built.files["hsaco"])
    kernel.run(grid, (256,), values, dynamic_lds_bytes=built.launch.shared_bytes)
    for argument in info.arguments:
        if argument.access == "w":
            _compare(argument.name, want[argument.name], got[argument.name], tolerance)


def _compare(name: str, want: Any, got: Any, tolerance: float) -> None:
    want, got = want.astype(np.float64), got.astype(np.float64)
    assert np.array_equal(np.isnan(want), np.isnan(got)), name
    finite = np.isfinite(want)
    assert np.array_equal(got[~finite & ~np.isnan(want)], want[~finite & ~np.isnan(want)]), name
    error = np.linalg.norm(want[finite] - got[finite]) / (np.linalg.norm(want[finite]) or 1.0)
    assert error <= tolerance, (name, error)


@pytest.mark.parametrize("form", ["a16w4", "a8w4"])
@pytest.mark.parametrize("family", ["moe_gate_up", "moe_down"])
def test_mi300x_has_the_experts_through_triton(family: str, form: str) -> None:
    """gfx942: decoded to bf16, by fp8 conversions of its own kind."""
    needs_emulator()
    params = params_of(family, format=form, inner=128, width=128, block_rows=16, block_n=64)
    for verdict in emulate(family, params, {"T": 5}, "mi300x"):
        assert verdict.passed, verdict
