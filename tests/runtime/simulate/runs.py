"""Short runs of the simulator, with their events at hand."""

from __future__ import annotations

from typing import Any

from k3compiler.runtime.simulate.config import parse_config
from k3compiler.runtime.simulate.contents import check_contents
from k3compiler.runtime.simulate.run import Simulation
from k3compiler.runtime.simulate.trace import parse_request

Event = dict[str, Any]


def part(stream: str, stop: int, start: int = 0) -> dict[str, Any]:
    """Tokens ``[start, stop)`` of a stream."""
    return {"stream": stream, "start": start, "stop": stop}


def request(name: str, *parts: Any, max_tokens: int = 2, **fields: Any) -> dict[str, Any]:
    """A line of a trace."""
    return {"id": name, "prompt": list(parts), "max_tokens": max_tokens, **fields}


class Run:
    """A finished run: ``events``, ``summary``, and the events of one kind by request.

    Args:
        deep: check every invariant after every step (the outputs are checked anyway).
    """

    def __init__(
        self, config: dict[str, Any], requests: list[dict[str, Any]], *, deep: bool = True
    ) -> None:
        self.events: list[Event] = []
        traced = [parse_request(r) for r in requests]
        self.sim = Simulation(parse_config(config), traced, self.events.append, check=True)
        while self.sim.has_work:
            self.sim.step()
            if deep:
                self.sim.cache.check_integrity()
                check_contents(self.sim)
        self.summary = self.sim.run()
        assert self.summary["wrong_outputs"] == 0
        assert (self.summary["leaked_pages"], self.summary["leaked_slots"]) == (0, 0)

    def of(self, event: str, name: str | None = None) -> list[Event]:
        """Events of a kind, in order."""
        return [
            e for e in self.events if e["event"] == event and (name is None or e.get("id") == name)
        ]

    def hit(self, name: str) -> int:
        """Tokens that a request reused when it was first admitted."""
        (admitted,) = self.of("admitted", name)
        return admitted["hit_tokens"]

    def finish_step(self, name: str) -> int:
        (finished,) = self.of("finished", name)
        return finished["step"]
