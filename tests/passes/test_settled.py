"""The check of settled buffers, on plans of a few launches."""

from __future__ import annotations

import pytest

from k3compiler.ir.tile_program import ArgumentInfo, ProgramInfo
from k3compiler.package.manifest import CollectiveStep, LaunchStep, Step
from k3compiler.passes.lower_to_tile.builder import Kernel
from k3compiler.passes.lower_to_tile.settled import check_settled

pytestmark = pytest.mark.t1


def kernel(symbol: str, *, next_grid: str = "end", is_settled: bool = False) -> Kernel:
    """A kernel that reads ``x`` and writes ``y``."""
    arguments = (
        ArgumentInfo("x", "f32", ("T",), is_settled=is_settled),
        ArgumentInfo("y", "f32", ("T",), "w"),
    )
    info = ProgramInfo(symbol, arguments, ("T", "1", "1"))
    return Kernel(symbol, symbol, {}, {"next_grid": next_grid}, symbol, "", "", info)


KERNELS = {
    k.symbol: k
    for k in (
        kernel("plain"),
        kernel("starter", next_grid="start"),
        kernel("waiter", next_grid="wait"),
        kernel("reader", is_settled=True),
    )
}


def launch(symbol: str, reads: str, writes: str, grid: str = "T", stream: int = 0) -> LaunchStep:
    return LaunchStep(symbol, (reads, writes), (grid, "1", "1"), symbol, stream=stream)


SOME = launch("plain", "a", "b")
READER = launch("reader", "b", "z")
BETWEEN = launch("waiter", "c", "d")
STARTER = launch("starter", "c", "d")
COLLECTIVE = CollectiveStep("all_reduce", ("b",), "T", "tp", "comm.all_reduce")


@pytest.mark.parametrize(
    "steps",
    [
        [SOME, BETWEEN, READER],
        [SOME, BETWEEN, STARTER, READER],
        [SOME, launch("plain", "c", "d"), COLLECTIVE, READER],
        [launch("plain", "a", "c"), READER],
    ],
)
def test_what_has_ended_may_be_settled(steps: list[Step]) -> None:
    check_settled(steps, KERNELS)


@pytest.mark.parametrize(
    "steps",
    [
        [SOME, READER],
        [SOME, STARTER, READER],  # the starter lets it begin beside the writer
        [SOME, COLLECTIVE, READER],  # a rank without the others skips it
        [SOME, launch("plain", "c", "d", "min(1, max(0, T-16))"), READER],  # empty at few tokens
        [launch("plain", "a", "b", stream=1), BETWEEN, launch("reader", "b", "z", stream=1)],
    ],
)
def test_what_may_still_run_is_not(steps: list[Step]) -> None:
    with pytest.raises(AssertionError, match="reader"):
        check_settled(steps, KERNELS)
