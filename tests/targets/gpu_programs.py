"""The rows of tests/kernels/programs that GPUs run, as build requests."""

from __future__ import annotations

from typing import Any

from k3compiler.ir.context import print_module
from k3compiler.kernels.base import build_program
from k3compiler.targets.backend import BuildRequest
from k3compiler.targets.schedule import launch_part, schedule_for
from tests.kernels.test_kernels import PROGRAMS

Row = tuple[str, dict[str, Any], dict[str, int]]

ROWS: list[Row] = [row for row in PROGRAMS if row[1].get("dtype", "bf16") != "f32"]


def requests(rows: list[Row], target: str) -> list[BuildRequest]:
    """One request a row, symbols numbered."""
    made: list[BuildRequest] = []
    for i, (family, params, _) in enumerate(rows):
        symbol = f"{family}_{i}"
        module = build_program(family, params, symbol=symbol, label=f"{family} [spec 0]")
        schedule = launch_part(schedule_for(family, params, target))
        text = print_module(module, locations=True)
        made.append(
            BuildRequest(
                symbol,
                text,
                schedule,
                op=family,
                layers=(1, 2, 5),
                shape=str(params),
                family=family,
                params=params,
            )
        )
    return made


def one_of_each(rows: list[Row], families: tuple[str, ...]) -> list[Row]:
    """The first row of each family."""
    firsts = {row[0]: row for row in reversed(rows)}
    return [firsts[family] for family in families]
