"""The rule behind a kernel's settled buffers: no launch that may still run writes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from k3compiler.package.expr import evaluate, symbols_of
from k3compiler.package.manifest import LaunchStep, Step
from k3compiler.passes.lower_to_tile.builder import Kernel

TOKENS = (1, 2, 9, 17, 65)  # of a step: a number of each range that launches are chosen by


def check_settled(steps: Sequence[Step], kernels: Mapping[str, Kernel]) -> None:
    """Asserts it for every launch of a plan, whether branches run side by side or one after another.

    A launch may start while the one before it runs, and where that lets the next start at its own ``start``, while
    the one before that runs. Collectives between them do not count: a rank can be run without the others.
    Source: docs/gpu-kernels.md, "Early starts".
    """
    launches = [s for s in steps if isinstance(s, LaunchStep)]
    for tokens in TOKENS:
        launched = [s for s in launches if _is_launched(s, tokens)]
        for branch in {0} | {s.stream for s in launched}:
            _check_order([s for s in launched if s.stream == branch], kernels)
        _check_order(launched, kernels)


def _is_launched(step: LaunchStep, tokens: int) -> bool:
    """Whether it has a program; other symbols than the numbers of tokens and sequences are never 0."""
    sizes = {n: tokens if n in ("T", "S") else 1 for e in step.grid for n in symbols_of(e)}
    return all(evaluate(extent, sizes) for extent in step.grid)


def _check_order(launches: Sequence[LaunchStep], kernels: Mapping[str, Kernel]) -> None:
    for at, step in enumerate(launches):
        arguments = kernels[step.launch].info.arguments
        settled = {
            name
            for name, a in zip(step.args, arguments, strict=True)
            if a.is_settled and not a.is_weight
        }
        for former in _still_running(launches[:at], kernels):
            both = settled & _written(former, kernels)
            assert not both, f"{step.launch} ({step.op}) reads {both}, which {former.launch} writes"


def _still_running(
    before: Sequence[LaunchStep], kernels: Mapping[str, Kernel]
) -> Iterator[LaunchStep]:
    """The launches that may run when the next one starts, the last first."""
    for step in reversed(before):
        yield step
        if kernels[step.launch].options.get("next_grid") != "start":
            return


def _written(step: LaunchStep, kernels: Mapping[str, Kernel]) -> set[str]:
    pairs = zip(step.args, kernels[step.launch].info.arguments, strict=True)
    return {name for name, a in pairs if a.access != "r"}
