"""Launches on branches: what they wait for, and the streams and events of a recording."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from k3compiler.errors import K3Error
from k3compiler.package.manifest import CollectiveStep, LaunchStep, Step
from k3compiler.runtime.device.branches import Branches, Place, places_of

pytestmark = pytest.mark.t0


def step(stream: int = 0, *waits: int) -> Step:
    return LaunchStep("k", (), ("1", "1", "1"), "op", None, stream, waits)


def total(*waits: int) -> Step:
    return CollectiveStep("all_reduce", ("x",), "1", "tp", "comm.all_reduce", None, 0, waits)


DIAMOND = [step(), step(), step(1, 0), step(0, 2), step()]


def test_a_launch_waits_for_launches_of_other_branches() -> None:
    assert places_of(DIAMOND) == (Place(), Place(), Place(1, (0,)), Place(0, (2,)), Place())


def test_what_launches_nothing_hands_on_its_waits() -> None:
    places = places_of([step(), step(1, 0), total(1), step()])
    assert places[2] == Place(0, (1,))


@pytest.mark.parametrize("wait", [1, 2, -1])
def test_nothing_waits_for_what_is_to_come(wait: int) -> None:
    with pytest.raises(K3Error, match="K3-K003"):
        places_of([step(), step(1, wait), step()])


class FakeCuda:
    """Streams and events that write down what they are told."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self._streams = 0

    def current_stream(self, _index: int) -> Any:
        return self._stream(100)

    def Stream(self, _index: int) -> Any:
        self._streams += 1
        return self._stream(100 + self._streams)

    def _stream(self, number: int) -> Any:
        def wait_event(event: Any) -> None:
            self.log.append(f"{number} waits for {event.at}")

        return SimpleNamespace(cuda_stream=number, wait_event=wait_event)

    def Event(self) -> Any:
        event = SimpleNamespace(at=None)
        count = sum(line.startswith("mark") for line in self.log)

        def record(stream: Any) -> None:
            event.at = f"mark {count}"
            self.log.append(f"mark {count} on {stream.cuda_stream}")

        event.record = record
        return event


def run(
    steps: list[Step], empty: set[int] | None = None
) -> tuple[list[tuple[int, bool]], list[str]]:
    cuda = FakeCuda()
    branches = Branches(SimpleNamespace(cuda=cuda), 0, places_of(steps))
    entered: list[tuple[int, bool]] = []
    for launch in range(len(steps)):
        entered.append(branches.enter(launch))
        branches.leave(launch, launched=launch not in (empty or set()))
    branches.join()
    return entered, cuda.log


def test_forks_and_joins_are_events_and_end_the_chain() -> None:
    entered, log = run(DIAMOND)
    assert entered == [(100, False), (100, True), (101, False), (100, False), (100, True)]
    assert log == [
        "mark 0 on 100",  # the start
        "mark 1 on 100",  # behind launch 0
        "101 waits for mark 0",
        "101 waits for mark 1",
        "mark 2 on 101",
        "100 waits for mark 2",
        "mark 3 on 101",  # the end: every branch is joined
        "100 waits for mark 3",
    ]


def test_an_empty_grid_is_waited_through() -> None:
    entered, log = run(DIAMOND, empty={2})
    assert entered[3] == (100, False)
    assert log.index("101 waits for mark 1") < log.index("100 waits for mark 2")


def test_one_branch_needs_no_events() -> None:
    entered, log = run([step(), step(), step()])
    assert entered == [(100, False), (100, True), (100, True)]
    assert log == []
