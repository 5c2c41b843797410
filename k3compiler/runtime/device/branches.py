"""Branches of a plan: which launches wait for which, and their streams while a step is recorded.

A step follows the one before it on its own branch (``stream`` in the plan) and the steps in ``waits``; what joins no
other branch is joined at the end. Steps in the plan's own order, one after another, are always right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from k3compiler.errors import K3Error
from k3compiler.package.manifest import LaunchStep, Step


@dataclass(frozen=True, slots=True)
class Place:
    """A launch among the others: its branch, and the launches on other branches that it waits for."""

    branch: int = 0
    waits: tuple[int, ...] = ()


def places_of(steps: Sequence[Step]) -> tuple[Place, ...]:
    """The place of every launch; a step that launches nothing hands on what it waits for.

    Raises:
        K3Error: K3-K003 for a step that waits for itself or a later one.
    """
    places: list[Place] = []
    ended: list[frozenset[int]] = []  # of each step: the launches whose end is its end
    last: dict[int, frozenset[int]] = {}  # the same, of the last step on each branch
    for index, step in enumerate(steps):
        if any(not 0 <= w < index for w in step.waits):
            raise K3Error(
                "K3-K003",
                where=f"step {index} ({step.op})",
                expected="waits for earlier steps",
                found=str(step.waits),
            )
        after = last.get(step.stream, frozenset()).union(*(ended[w] for w in step.waits))
        if isinstance(step, LaunchStep):
            waits = sorted(w for w in after if places[w].branch != step.stream)
            after = frozenset({len(places)})
            places.append(Place(step.stream, tuple(waits)))
        ended.append(after)
        last[step.stream] = after
    return tuple(places)


class Branches:
    """The streams of one pass over launches; branch 0 is the current stream, events fork and join the others.

    Args:
        torch: its ``cuda`` makes streams and events.
        places: of every launch; None puts all on the current stream, in order.
    """

    def __init__(self, torch: Any, index: int, places: Sequence[Place] | None) -> None:
        self._torch, self._index = torch, index
        self._places = places
        self._streams: dict[int, Any] = {0: torch.cuda.current_stream(index)}
        self._chained: set[int] = set()  # branches whose last work is a launch
        self._awaited = {w for place in places or () for w in place.waits}
        self._events: dict[int, Any] = {}
        self._unjoined: dict[int, Any] = {}
        self._start = self._mark(0) if any(p.branch for p in places or ()) else None

    def enter(self, launch: int) -> tuple[int, bool]:
        """The stream that a launch goes to, and whether it follows a launch there and nothing else."""
        place = Place() if self._places is None else self._places[launch]
        if place.branch not in self._streams:
            self._streams[place.branch] = self._torch.cuda.Stream(self._index)
            self._wait(place.branch, self._start)
        for other in place.waits:
            self._wait(place.branch, self._events[other])
        return int(self._streams[place.branch].cuda_stream), place.branch in self._chained

    def leave(self, launch: int, *, launched: bool) -> None:
        """Behind a launch, or where one with an empty grid would be."""
        branch = 0 if self._places is None else self._places[launch].branch
        if launched:
            self._chained.add(branch)
        if launch in self._awaited:
            self._events[launch] = self._mark(branch)
        if branch:
            self._unjoined[branch] = None

    def interrupt(self) -> None:
        """Behind work on the current stream that is no launch."""
        self._chained.discard(0)

    def join(self) -> None:
        """Makes the current stream wait for every branch."""
        for branch in self._unjoined:
            self._wait(0, self._mark(branch))

    def _mark(self, branch: int) -> Any:
        event = self._torch.cuda.Event()
        event.record(self._streams[branch])
        return event

    def _wait(self, branch: int, event: Any) -> None:
        self._streams[branch].wait_event(event)
        self._chained.discard(branch)
