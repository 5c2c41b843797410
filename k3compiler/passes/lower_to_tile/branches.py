"""Parallel branches of a plan, from what its steps read and write.

A step goes behind a step that it depends on, if that one is the last of its branch; else on another branch, from
which whoever needs the result waits for it. Collectives stay on branch 0, in one order on every rank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from k3compiler.package.manifest import CollectiveStep, LaunchStep, Step

MAX_BRANCHES = 4
Access = Callable[[Step], tuple[set[str], set[str]]]
"""The buffers that a step reads and those that it writes, weights and step inputs left out."""


@dataclass(slots=True)
class _Dependencies:
    """Who wrote each buffer last, and who has read it since."""

    writers: dict[str, int] = field(default_factory=dict[str, int])
    readers: dict[str, list[int]] = field(default_factory=dict[str, list[int]])

    def add(self, index: int, reads: set[str], writes: set[str]) -> set[int]:
        """The earlier steps that this one must follow."""
        found = {self.writers[name] for name in reads | writes if name in self.writers}
        found |= {reader for name in writes for reader in self.readers.get(name, ())}
        for name in reads:
            self.readers.setdefault(name, []).append(index)
        for name in writes:
            self.writers[name], self.readers[name] = index, []
        return found - {index}


def branched(steps: Sequence[Step], access: Access) -> tuple[Step, ...]:
    """The steps with ``stream`` and ``waits`` set, in the same order."""
    known, before = _Dependencies(), list[int]()
    tails: dict[int, int] = {}
    placed: list[Step] = []
    for index, step in enumerate(steps):
        needed = _direct(known.add(index, *access(step)), before)
        stream = 0 if isinstance(step, CollectiveStep) else _stream(tails, needed, before)
        ahead = {tails[stream]} if stream in tails else set[int]()
        waits = _direct(needed | ahead, before) - ahead
        placed.append(replace(step, stream=stream, waits=tuple(sorted(waits))))
        before.append(_mask(waits | ahead, before))
        tails[stream] = index
    return tuple(placed)


def _stream(tails: dict[int, int], needed: set[int], before: list[int]) -> int:
    """The branch to go on: behind what is needed, else one that has been joined, else a new one."""
    behind = [stream for stream, tail in tails.items() if tail in needed]
    if behind or not needed:
        return min(behind, default=0)
    ancestors = _mask(needed, before)
    joined = [stream for stream, tail in tails.items() if ancestors >> tail & 1]
    new = next((s for s in range(MAX_BRANCHES) if s not in tails), 0)
    return min((s for s in joined if s), default=new)


def _direct(steps: set[int], before: list[int]) -> set[int]:
    """Without those that another of them follows anyway."""
    covered = 0
    for step in steps:
        covered |= before[step]
    return {step for step in steps if not covered >> step & 1}


def _mask(steps: set[int], before: list[int]) -> int:
    """These steps and all before them, as bits."""
    mask = 0
    for step in steps:
        mask |= before[step] | 1 << step
    return mask


def ancestors(steps: Sequence[Step]) -> list[int]:
    """Of every step, the steps that are sure to have ended when it begins, as bits."""
    tails: dict[int, int] = {}
    before: list[int] = []
    for index, step in enumerate(steps):
        ahead = {tails[step.stream]} if step.stream in tails else set[int]()
        before.append(_mask({*step.waits, *ahead}, before))
        tails[step.stream] = index
    return before


def access_of(
    step: Step, written_by: Callable[[LaunchStep], Sequence[str]]
) -> tuple[set[str], set[str]]:
    """What a step reads and writes; ``written_by`` says which arguments a launch writes.

    What a launch writes counts as read too: it may be written in part.
    """
    names = {name for name in step.args if not name.startswith("w:")}
    if isinstance(step, LaunchStep):
        return names, set(written_by(step))
    return names, {step.args[-1]} if isinstance(step, CollectiveStep) else names
