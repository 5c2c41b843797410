"""The experts' products from planes mean what the family's own programs mean, and build for Hopper."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from k3compiler.check.case import judge, make_case
from k3compiler.ir.context import print_module
from k3compiler.ir.tile_interpreter import run_tile_program
from k3compiler.ir.tile_program import describe
from k3compiler.kernels.base import build_program
from k3compiler.kernels.moe_planes import planes_program
from k3compiler.package.expr import evaluate
from k3compiler.package.shuffles import PLANE_DEPTH, shuffled
from k3compiler.targets.backend import BuildRequest, backend_for
from k3compiler.targets.base import find_target

pytestmark = pytest.mark.t1

BLOCKS = {"block_rows": 8, "block_n": 64, "block_k": 128, "swap": True}
SITU = {"activation": "situ", "beta": 4.0, "linear_beta": 25.0}
UP = {"experts": 3, "inner": 96, "width": 160, "top_k": 3, **SITU}
SMALL = {"experts": 3, "inner": 96, "width": 72, "top_k": 3}
DOWN = {**SMALL, "block_choices": 4, "dtype": "bf16"}
CASES: list[tuple[str, dict[str, Any]]] = [
    ("moe_gate_up", dict(UP, **BLOCKS, in_cols=200, in_offset=8, format="a16w4", dtype="bf16")),
    ("moe_gate_up", dict(UP, **BLOCKS, in_cols=160, in_offset=0, format="a8w4", dtype="e4m3")),
    ("moe_down", dict(DOWN, **BLOCKS, format="a16w4", out_dtype="bf16")),
    ("moe_down", dict(DOWN, **BLOCKS, format="a8w4", out_dtype="f32")),
]


def as_planes(arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments with weights and scales laid out, in the shapes that the program declares."""
    made = dict(arguments)
    for i in (1, 2, 3):
        if f"w{i}" not in arguments:
            continue
        words = shuffled("e2m1_planes", arguments[f"w{i}"])
        scales = shuffled("e8m0_planes", arguments[f"s{i}"])
        experts, rows, width = words.shape
        steps = width // (PLANE_DEPTH // 2)
        made[f"w{i}"] = words.view(np.int16).reshape(experts, steps, rows, 32)
        made[f"s{i}"] = scales.view(np.int32).reshape(experts, steps, rows)
    return made


@pytest.mark.parametrize(("family", "params"), CASES)
def test_planes_mean_what_the_family_says(family: str, params: dict[str, Any]) -> None:
    case = make_case(family, params, np.random.default_rng(5), {"T": 6})
    arguments = as_planes({k: np.array(v, copy=True) for k, v in case.arguments.items()})
    module = planes_program(family, params, symbol="k", label=family)
    info = describe(module)
    grid = [evaluate(axis, info.symbols_from(arguments)) for axis in info.grid]
    run_tile_program(module, arguments, grid)
    assert [v for v in judge(case, arguments) if not v.passed] == []


@pytest.mark.parametrize(("family", "params"), CASES)
def test_planes_take_the_familys_arguments_and_build(family: str, params: dict[str, Any]) -> None:
    own = build_program(family, params, symbol="k")
    ours = describe(planes_program(family, params, symbol="k", label=family))
    assert [a.name for a in describe(own).arguments] == [a.name for a in ours.arguments]
    assert describe(own).grid == ours.grid
    schedule = {"num_warps": 4, "num_stages": 3, "form": "planes"}
    text = print_module(own, locations=True)
    request = BuildRequest("k", text, schedule, op="test", family=family, params=params)
    built = backend_for(find_target("h200")).compile(request)
    assert built.resources.instructions["wgmma"] and b"mul.rn.bf16x2" in built.files["ptx"]
