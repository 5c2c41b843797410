"""Builds one family's kernel for an AMD chip, and runs it on the emulator in both wave orders."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from k3compiler.check.case import Verdict, judge, make_case
from k3compiler.check.emulator.kernel import ORDERS, EmulatedKernel
from k3compiler.check.emulator.runner import run_code
from k3compiler.ir.context import print_module
from k3compiler.ir.tile_program import describe
from k3compiler.kernels.base import build_program
from k3compiler.package.manifest import ArgRecord, KernelRecord
from k3compiler.targets.backend import BuildRequest, backend_for
from k3compiler.targets.base import find_target
from k3compiler.targets.schedule import launch_part, schedule_for


def record_of(family: str, params: Mapping[str, Any], target: str) -> tuple[KernelRecord, bytes]:
    """A kernel built here: its record, and its code object."""
    module = build_program(family, params, symbol=family)
    schedule = launch_part(schedule_for(family, params, target))
    text = print_module(module, locations=True)
    request = BuildRequest(family, text, schedule, op=family)
    built = backend_for(find_target(target)).compile(request)
    info = describe(module)
    arguments = tuple(
        ArgRecord(a.name, "scalar" if a.shape is None else "buffer", a.dtype, a.shape or ())
        for a in info.arguments
    )
    record = KernelRecord(
        symbol=family, family=family, op=family, args=arguments, grid=info.grid, launch=built.launch
    )
    return record, built.files["hsaco"]


def emulate(
    family: str, params: Mapping[str, Any], sizes: Mapping[str, int], target: str
) -> list[Verdict]:
    """The verdicts of one kernel in every wave order."""
    record, code = record_of(family, params, target)
    verdicts: list[Verdict] = []
    for order in ORDERS:
        case = make_case(family, params, np.random.default_rng(len(family)), sizes)
        results = run_code(EmulatedKernel(code), record, case.arguments, order=order)
        verdicts += judge(case, results)
    return verdicts
