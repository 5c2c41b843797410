"""Parts of a plan: some of its steps, with their waits kept right."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from k3compiler.package.manifest import Step


def some_steps(steps: Sequence[Step], keep: Callable[[Step], bool]) -> tuple[Step, ...]:
    """The steps that ``keep`` takes, in order; who waited for one that is gone waits for what that one waited for."""
    kept: list[Step] = []
    ended: list[
        frozenset[int]
    ] = []  # of each step: the kept ones (by new index) whose end it stands for
    last: dict[int, frozenset[int]] = {}
    for step in steps:
        after = last.get(step.stream, frozenset()).union(*(ended[w] for w in step.waits))
        if keep(step):
            waits = {i for i in after if kept[i].stream != step.stream}
            kept.append(replace(step, waits=tuple(sorted(waits))))
            after = frozenset({len(kept) - 1})
        ended.append(after)
        last[step.stream] = after
    return tuple(kept)
