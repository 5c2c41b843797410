"""Drives a simulation by hand: arrivals, steps and disturbances, everything checked in between."""

from __future__ import annotations

import random
from typing import Any

from k3compiler.runtime.cache.arena import Side
from k3compiler.runtime.simulate.config import SimulateConfig, parse_config
from k3compiler.runtime.simulate.contents import check_contents
from k3compiler.runtime.simulate.run import Simulation
from k3compiler.runtime.simulate.trace import parse_request

MAX_TOKENS = 100


def random_config(choose: random.Random) -> SimulateConfig:
    """Small and odd sizes: units, pages and slots that do not divide each other."""
    unit = choose.choice([2, 4, 4, 8])
    chunk = choose.choice([c for c in (1, 2, 4) if unit % c == 0])
    width = choose.choice([1, 1, 3, 6])
    data: dict[str, Any] = {
        "mla_token_bytes": choose.choice([1, 3, 8]),
        "state_bytes": choose.choice([5, 16, 40, 100]),
        "page_tokens": choose.choice([1, 2, 3, 4, 5, 8, 16]),
        "match_unit_tokens": unit,
        "chunk_tokens": chunk,
        "max_batched_tokens": choose.choice([8, 16, 33, 64]),
        "max_seqs": choose.choice([1, 2, 4, 8]),
        "retention": {
            "prompt_end": choose.random() < 0.8,
            "second_hit": choose.random() < 0.8,
            "generation_end": choose.random() < 0.8,
            "interval_tokens": choose.choice([0, 0, 2 * unit]),
        },
        "eviction": choose.choice(["lru", "value"]),
        "memory": choose.choice(["unified", "unified", "static"]),
        "host_bytes": choose.choice([0, 0, 200, 1000]),
        "prefix_cache": choose.random() < 0.95,
        "speculative": {"width": width, "accept": [choose.randrange(width) for _ in range(3)]},
    }
    alone = data["state_bytes"] + (MAX_TOKENS + 16) * data["mla_token_bytes"]
    data["arena_bytes"] = int(alone * choose.choice([1.1, 2.3, 4.5, 10]))
    return parse_config(data)


def random_request(choose: random.Random, name: str, earlier: list[str | int]) -> dict[str, Any]:
    """Prompts over a few streams, so that prefixes are shared and left at any token."""
    parts: list[Any] = [{"stream": choose.choice("ab"), "start": 0, "stop": choose.randrange(40)}]
    if choose.random() < 0.5:
        parts.append({"stream": choose.choice("cd"), "start": 0, "stop": choose.randrange(1, 30)})
    if choose.random() < 0.1:
        parts = [{"tokens": [1]}]
    request: dict[str, Any] = {"id": name, "prompt": parts, "max_tokens": choose.randrange(1, 25)}
    if choose.random() < 0.3 and earlier:
        request[choose.choice(["after", "continue_of"])] = choose.choice(earlier)
    if choose.random() < 0.1:
        request["salt"] = "s"
    if choose.random() < 0.1:
        request["adapter"] = "x"
    if choose.random() < 0.15:
        stop = choose.randrange(4, 20)
        request["media"] = [{"id": choose.choice("mn"), "start": 3, "stop": stop}]
    if choose.random() < 0.1:
        request["no_cache_read"] = True
    if choose.random() < 0.2:
        request["priority"] = choose.randrange(3)
    return request


class Driver:
    """A simulation and the checks that hold after every step.

    ``num_steps`` counts steps; every method leaves the simulation between two of them.
    """

    def __init__(self, config: SimulateConfig) -> None:
        self.events: list[dict[str, Any]] = []
        self.sim = Simulation(config, [], self._take, check=True)
        self.num_steps = 0
        self._num_requests = 0

    def _take(self, event: dict[str, Any]) -> None:
        self.events.append(event)
        if event["event"] in ("admitted", "resumed"):
            job = self.sim.jobs[event["id"]]
            assert event["hit_tokens"] <= event["mla_hit_tokens"] < len(job.known), (
                "hit past the cap"
            )
            assert event["hit_tokens"] % self.sim.cache.unit == 0, "a hit off the match unit"

    def arrive(self, choose: random.Random) -> None:
        """One more request."""
        unfinished = [n for n, job in self.sim.jobs.items() if job.state.value != "done"]
        data = random_request(choose, str(self._num_requests), unfinished)
        self._num_requests += 1
        self.sim.add(parse_request(data))

    def step(self) -> None:
        """A step, then every check."""
        if self.sim.has_work:
            self.sim.step()
            self.num_steps += 1
            self.check()

    def check(self) -> None:
        """A17 after whatever happened."""
        self.sim.cache.check_integrity()
        check_contents(self.sim)
        assert self.sim.totals["wrong_outputs"] == 0, "an output differs from the cold run"
        budget = self.sim.config.max_batched_tokens
        step = self.sim.step_index - 1
        fed = 0
        for event in reversed(self.events):
            if event["step"] < step:
                break
            fed += event["tokens"] if event["event"] == "chunk" else 0
        assert fed <= budget, f"{fed} tokens in a step of {budget}"

    def abort(self, choose: random.Random) -> None:
        """End any request."""
        live = [j for j in self.sim.jobs.values() if j.state.value != "done"]
        if live:
            job = choose.choice(live)
            self.sim.scheduler.abort(job)
            self.sim._finish_aborted(job)
            self.check()

    def preempt(self, choose: random.Random) -> None:
        """Take a running request off."""
        running = self.sim.scheduler._running()
        if running:
            self.sim.scheduler._preempt(choose.choice(running))
            self.check()

    def evict(self, choose: random.Random) -> None:
        """Make room that nobody asked for (spills where there is a lower tier)."""
        self.sim.cache._evict_one(choose.choice([("state",), ("page",), ("state", "page")]))
        self.check()

    def compact(self, choose: random.Random) -> None:
        """Fill some holes of one side."""
        arena = self.sim.cache.arena
        side: Side = choose.choice([arena.slots, arena.pages])
        if len(side.holes):
            move = side.retreat(choose.randrange(1, len(side.holes) + 1))
            assert move is not None, "holes, and no move into them"
            arena.ops.append(move)
            self.check()

    def finish(self) -> dict[str, Any]:
        """Run to the end; nothing may be left."""
        while self.sim.has_work:
            self.step()
        summary = self.sim.run()
        assert summary["wrong_outputs"] == 0, "an output differs from the cold run"
        assert (summary["leaked_pages"], summary["leaked_slots"]) == (0, 0), "memory leaked"
        assert not self.sim.device.host, "host copies leaked"
        ended = summary["num_finished"] + summary["num_refused"]
        assert ended == self._num_requests, "a request was lost"
        return summary


def random_run(seed: int, num_actions: int = 60) -> Driver:
    """A whole run of random actions, to the end."""
    choose = random.Random(seed)
    driver = Driver(random_config(choose))
    disturb = (driver.abort, driver.preempt, driver.evict, driver.compact)
    for _ in range(num_actions):
        kind = choose.random()
        if kind < 0.3:
            driver.arrive(choose)
        elif kind < 0.8:
            driver.step()
        else:
            choose.choice(disturb)(choose)
    driver.finish()
    return driver
