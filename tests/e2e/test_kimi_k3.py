"""The released model's own shape, from its config alone: builds, limits, instructions, bytes.

Nightly: a cold build takes minutes on two cores.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from k3compiler.package.reader import Package

pytestmark = [pytest.mark.t2, pytest.mark.nightly]

COLD_SECONDS, CACHED_SECONDS, MEMORY_GB = 600, 20, 8
MATRIX = {"gb300": "tcgen05.mma", "mi355x": "mfma", "h200": "wgmma"}
ISA = {"gb300": "sm_103a", "mi355x": "gfx950", "h200": "sm_90a"}
MATRIX_FAMILIES = {
    "gemm", "head_gemm", "kda_prepare", "kda_segment_maps", "kda_scan", "kda_output", "mla_prefill",
    "mla_decode", "moe_gate_up", "moe_down",
}  # fmt: skip


def build(target: str, folder: Path, cache: Path) -> tuple[Package, float, float]:
    """The package, seconds, and the peak memory of the largest process in GB."""
    command = [
        sys.executable, "-m", "k3compiler.cli.main", "compile", "kimi-k3", "--target", target,
        "--tp", "8", "-o", str(folder),
    ]  # fmt: skip
    start = time.monotonic()
    with subprocess.Popen(command, env=os.environ | {"K3C_CACHE_DIR": str(cache)}) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return Package.open(folder), time.monotonic() - start, usage.ru_maxrss / 1e6


@pytest.mark.parametrize("target", ["gb300", "mi355x", "h200"])
def test_kimi_k3_builds_cold_and_cached_to_the_same_bytes(target: str, tmp_path: Path) -> None:
    first, cold, memory = build(target, tmp_path / "a", tmp_path / "cache")
    cached_package, cached, _ = build(target, tmp_path / "b", tmp_path / "cache")
    second, _, _ = build(target, tmp_path / "c", tmp_path / "other-cache")
    print(f"{target}: cold {cold:.0f} s, cached {cached:.1f} s, {memory:.1f} GB")
    assert first.manifest == cached_package.manifest == second.manifest
    assert cold < COLD_SECONDS and cached < CACHED_SECONDS and memory < MEMORY_GB
    assert first.manifest.target.isa == ISA[target]
    for kernel in first.manifest.kernels:
        if kernel.family in MATRIX_FAMILIES:
            used = [n for n in kernel.resources.instructions if n.startswith(MATRIX[target])]
            assert used, f"{kernel.symbol} ({kernel.op}) has no {MATRIX[target]}"


def test_every_cubin_is_of_its_isa(tmp_path: Path) -> None:
    package, _, _ = build("gb300", tmp_path / "a", tmp_path / "cache")
    for kernel in package.manifest.kernels:
        assert ".target sm_103a" in package.read(kernel.files["ptx"]).decode()
