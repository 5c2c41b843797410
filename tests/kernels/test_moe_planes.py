"""The experts' products from planes mean what the family's own programs mean, and build for Hopper."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from k3compiler.check.case import judge, make_case
from k3compiler.ir.context import print_module
from k3compiler.ir.tile_interpreter import NUMPY, run_tile_program
from k3compiler.ir.tile_program import ProgramInfo, describe
from k3compiler.kernels.base import build_program
from k3compiler.kernels.moe_planes import planes_program
from k3compiler.package.expr import evaluate
from k3compiler.package.shuffles import shuffled
from k3compiler.targets.backend import BuildRequest, backend_for
from k3compiler.targets.base import find_target

pytestmark = pytest.mark.t1

BLOCKS = {"block_rows": 8, "block_n": 64, "block_k": 128, "swap": True}
SITU = {"activation": "situ", "beta": 4.0, "linear_beta": 25.0}
UP = {"experts": 3, "inner": 96, "width": 160, "top_k": 3, **SITU}
SMALL = {"experts": 3, "inner": 96, "width": 72, "top_k": 3}
DOWN = {**SMALL, "block_choices": 4, "dtype": "bf16"}
ONE = {"block_rows": 8, "format": "a16w4", "dtype": "bf16"}
SUM = {"block_choices": 4, "out_dtype": "bf16"}
CASES: list[tuple[str, dict[str, Any]]] = [
    ("moe_gate_up", dict(UP, **BLOCKS, in_cols=200, in_offset=8, format="a16w4", dtype="bf16")),
    (
        "moe_gate_up",
        dict(UP, **BLOCKS, in_cols=160, in_offset=0, format="a16w4", dtype="bf16", rounds=True),
    ),
    ("moe_down", dict(DOWN, **BLOCKS, format="a16w4", out_dtype="bf16")),
    ("moe_down", dict(DOWN, **BLOCKS, format="a16w4", out_dtype="f32")),
    (
        "moe_gate_up_one",
        dict(UP, **ONE, block_n=8, block_k=256, spread=1, in_cols=200, in_offset=8),
    ),
    (
        "moe_gate_up_one",
        dict(UP, **ONE, block_n=4, block_k=128, spread=1, in_cols=160, in_offset=0),
    ),
    (
        "moe_gate_up_one",
        dict(UP, **ONE, block_n=8, block_k=1024, spread=8, in_cols=224, in_offset=32),
    ),
    ("moe_down_one", dict(SMALL, **ONE, **SUM, block_n=8, together=4)),
    ("moe_down_one", dict(SMALL, **ONE, **SUM, block_n=16, together=1) | {"inner": 160}),
]


def as_planes(arguments: dict[str, Any], info: ProgramInfo) -> dict[str, Any]:
    """The arguments with weights and scales laid out, in the shapes and types that the program declares."""
    layouts = {"w": "e2m1_planes", "s": "e8m0_planes"}
    made: dict[str, Any] = {}
    for argument in info.arguments:
        name = argument.name
        if name not in arguments:
            continue
        given = arguments[name]
        if name[0] in layouts and name[1:].isdigit():
            given = shuffled(layouts[name[0]], given)
        if argument.shape is not None:
            shape = (n if isinstance(n, int) else -1 for n in argument.shape)
            given = given.view(NUMPY.get(argument.dtype, given.dtype)).reshape(tuple(shape))
        made[name] = given
    return made


@pytest.mark.parametrize(("family", "params"), CASES)
def test_planes_mean_what_the_family_says(family: str, params: dict[str, Any]) -> None:
    case = make_case(family, params, np.random.default_rng(5), {"T": 6})
    module = planes_program(family, params, symbol="k", label=family)
    info = describe(module)
    arguments = as_planes({k: np.array(v, copy=True) for k, v in case.arguments.items()}, info)
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
    if params.get("spread", 1) > 1:
        assert built.resources.instructions["wgmma"]
    elif family.endswith("_one"):
        assert not built.resources.instructions and not built.resources.spill_bytes
    else:
        assert built.resources.instructions["wgmma"] and b"mul.rn.bf16x2" in built.files["ptx"]


ONE_TOKEN = [row for row in CASES if row[0].endswith("_one")]


@pytest.mark.parametrize(("family", "params"), ONE_TOKEN)
@pytest.mark.parametrize("scale", [0, 40, 158, 255])
def test_one_token_takes_scales_as_they_are(
    family: str, params: dict[str, Any], scale: int
) -> None:
    """All blocks of down or up (NaN: of gate, which SiTU caps) with one scale."""
    if params.get("spread", 1) > 1 and not scale:
        scale = 30  # the smallest that bf16 times 2^-30 can hold
    params = params | ({"linear_beta": None} if "linear_beta" in params else {})
    case = make_case(family, params, np.random.default_rng(9))
    arguments = {k: np.array(v, copy=True) for k, v in case.arguments.items()}
    for name in ("s1",) if scale == 255 and family == "moe_gate_up_one" else ("s2", "s3"):
        if name in arguments:
            arguments[name][...] = scale
    out = "h" if "h" in arguments else "r"
    module, results = build_program(family, params, symbol="k"), dict(arguments)
    results[out] = arguments[out].copy()
    grid = [
        evaluate(axis, describe(module).symbols_from(results)) for axis in describe(module).grid
    ]
    run_tile_program(module, results, grid)
    planes = planes_program(family, params, symbol="k", label=family)
    laid = as_planes(arguments, describe(planes))
    run_tile_program(planes, laid, grid)
    want, got = (a[out].astype(np.float64)[0] for a in (results, laid))
    assert np.isnan(want).all() == np.isnan(got).all() == (scale == 255)
    if scale < 255:
        least = 2.0 ** (scale - 127)
        assert least < np.abs(want).max()
        np.testing.assert_allclose(got, want, rtol=2**-6, atol=2**-6 * least)


@pytest.mark.parametrize(("family", "params"), ONE_TOKEN)
def test_one_token_without_a_local_expert(family: str, params: dict[str, Any]) -> None:
    """Nothing is written of the hidden rows; the sum is zero."""
    case = make_case(family, params, np.random.default_rng(5))
    arguments = {k: np.array(v, copy=True) for k, v in case.arguments.items()}
    arguments["block_expert"][...] = -1
    if "pairs" in arguments:
        arguments["pairs"][...] = 0x7F7F7F7F
    planes = planes_program(family, params, symbol="k", label=family)
    for module, given in (
        (build_program(family, params, symbol="k"), dict(arguments)),
        (planes, as_planes(arguments, describe(planes))),
    ):
        info = describe(module)
        run_tile_program(module, given, [evaluate(g, info.symbols_from(given)) for g in info.grid])
        if family == "moe_down_one":
            assert np.array_equal(given["r"].astype(np.float64), np.zeros(given["r"].shape))
        else:
            assert np.isnan(given["h"].astype(np.float64)).all()
