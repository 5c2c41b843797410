"""FlyDSL kernels of small shapes: built here, run on the emulator."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from k3compiler.check.case import Case, make_case
from k3compiler.check.emulator.kernel import ORDERS, EmulatedKernel, WaveOrder
from k3compiler.check.emulator.runner import run_code
from k3compiler.ir.context import print_module
from k3compiler.ir.tile_program import describe
from k3compiler.kernels.base import build_program
from k3compiler.package.manifest import ArgRecord, KernelRecord
from k3compiler.targets.backend import BuildRequest, BuiltKernel, backend_for
from k3compiler.targets.base import find_target

SCHEDULE: dict[str, Any] = {"form": "flydsl", "num_warps": 4}


def params_of(family: str, **changed: Any) -> dict[str, Any]:
    """Parameters of a small product: 3 experts, 512 by 512."""
    shared: dict[str, Any] = {
        "experts": 3, "inner": 512, "width": 512, "top_k": 4, "format": "a16w4", "block_rows": 64,
        "block_k": 128, "swap": True, "dtype": "bf16",
    }  # fmt: skip
    if family == "moe_down":
        own: dict[str, Any] = {"block_n": 128, "block_choices": 4, "out_dtype": "bf16"}
    else:
        own = {"block_n": 64, "activation": "situ", "beta": 4.0, "linear_beta": 25.0}
        extra = 0 if changed.get("format") == "a8w4" else 32
        columns = changed.get("width", shared["width"]) + extra
        own |= {"in_cols": columns, "in_offset": extra}
    return {**shared, **own, **changed}


def request_of(family: str, params: Mapping[str, Any], **schedule: Any) -> BuildRequest:
    text = print_module(build_program(family, params, symbol=family), locations=True)
    chosen = {**SCHEDULE, **schedule}
    return BuildRequest(family, text, chosen, op="moe.test", family=family, params=params)


def build(
    family: str, params: Mapping[str, Any], target: str = "mi355x", **schedule: Any
) -> BuiltKernel:
    return backend_for(find_target(target)).compile(request_of(family, params, **schedule))


def record_of(
    family: str, params: Mapping[str, Any], built: BuiltKernel, form: str = "flydsl"
) -> KernelRecord:
    info = describe(build_program(family, params, symbol=family))
    arguments = tuple(
        ArgRecord(a.name, "scalar" if a.shape is None else "buffer", a.dtype, a.shape or ())
        for a in info.arguments
    )
    return KernelRecord(
        symbol=family,
        family=family,
        op="moe.test",
        args=arguments,
        grid=info.grid,
        launch=built.launch,
        schedule={"form": form} if form else {},
        files={"hsaco": f"kernels/{family}.hsaco"},
    )


def case_of(family: str, params: Mapping[str, Any], tokens: int = 9) -> Case:
    return make_case(family, params, np.random.default_rng(5), {"T": tokens})


def run(
    code: bytes, record: KernelRecord, case: Case, order: WaveOrder = ORDERS[0]
) -> dict[str, Any]:
    return run_code(EmulatedKernel(code), record, case.arguments, order=order)


def steady_loop(assembly: str) -> list[str]:
    """Instructions between a label and the last branch back to it."""
    lines = [line.split(";")[0].strip() for line in assembly.splitlines()]
    labels = {m[1]: i for i, line in enumerate(lines) if (m := re.match(r"(\.LBB\S+):", line))}
    for index, line in enumerate(lines):
        branch = re.match(r"s_c?branch\S*\s+(\.LBB\S+)", line)
        if branch and labels.get(branch[1], len(lines)) < index:
            inside = lines[labels[branch[1]] + 1 : index + 1]
            return [text for text in inside if text and not text.startswith(".")]
    return []
