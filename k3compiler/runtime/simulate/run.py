"""The simulator: arrivals, the scheduler, the fake device, events, and a summary."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from time import perf_counter_ns
from typing import Any

import numpy as np

from k3compiler.runtime.cache.hybrid import HybridCache
from k3compiler.runtime.cache.ops import Ints, Move
from k3compiler.runtime.cache.unit_keys import Media, Tokens
from k3compiler.runtime.scheduler.continuous import ContinuousScheduler, StepPlan
from k3compiler.runtime.scheduler.job import Job, JobState
from k3compiler.runtime.simulate.config import SimulateConfig
from k3compiler.runtime.simulate.fake_device import FakeDevice
from k3compiler.runtime.simulate.fake_model import cold_run
from k3compiler.runtime.simulate.trace import Id, TraceRequest, check_order

Write = Callable[[dict[str, Any]], None]
_KIND_NAMES = {"page": "mla", "state": "state"}


class Simulation:
    """Runs a trace. One instance is one run.

    Args:
        write: takes every event, in order.
        check: compare every output with a cold run, and check the cache at the end.
    """

    def __init__(
        self,
        config: SimulateConfig,
        requests: Sequence[TraceRequest],
        write: Write | None = None,
        *,
        check: bool = False,
    ) -> None:
        check_order(list(requests))
        self.config, self._check = config, check
        self._write: Write = write or (lambda event: None)
        self.cache = HybridCache(config.shape, self._observe)
        self.scheduler = ContinuousScheduler(self.cache, config.limits, config.keep, self.emit)
        self.device = FakeDevice(self.cache)
        self.step_index = 0
        self._requests: dict[Id, TraceRequest] = {}
        self._followers: dict[Id, list[Id]] = {}
        self._arrivals: list[tuple[int, int, Id]] = []
        self._place: dict[Id, int] = {}
        self.jobs: dict[Id, Job] = {}
        self._aborts: list[tuple[int, int, Id]] = []
        self._verified: dict[Id, int] = {}
        self._order = 0
        self._times: list[int] = []
        names = ("steps", "computed_tokens", "reused_tokens", "wrong_outputs", "checked_outputs")
        self.totals: dict[str, int] = dict.fromkeys(names, 0)
        self._counts: dict[str, int] = {}
        self._peaks = {"peak_mla_bytes": 0, "peak_state_bytes": 0, "waste_bytes": 0}
        self._max_running = 0
        for request in requests:
            self.add(request)

    def add(self, request: TraceRequest) -> None:
        """One more request; its ``after``, if any, names one that was added and has not ended."""
        self._requests[request.id] = request
        self._place[request.id] = len(self._place)
        if request.after is None:
            self._arrive_at(request.id, request.arrival_step)
        else:
            self._followers.setdefault(request.after, []).append(request.id)

    # -- events

    def emit(self, event: str, fields: dict[str, Any]) -> None:
        """Write an event of this step and count it."""
        self._counts[event] = self._counts.get(event, 0) + 1
        if event in ("admitted", "resumed"):
            self.totals["reused_tokens"] += fields["hit_tokens"]
        if event == "finished":
            self._end(fields)
        self._write({"event": event, "step": self.step_index, **fields})

    def _observe(self, event: str, fields: dict[str, Any]) -> None:
        self.emit(event, {**fields, "kind": _KIND_NAMES[fields["kind"]]})

    def _end(self, fields: dict[str, Any]) -> None:
        """A request is over: check it, and let its followers come."""
        name, output = fields["id"], fields["output"]
        fields["output"] = output.tolist()
        job = self.jobs[name]
        if self._check:
            self._compare(job, output)
        for follower in self._followers.pop(name, ()):
            arrival = self._requests[follower].arrival_step
            self._arrive_at(follower, max(self.step_index + 1, arrival))

    def _compare(self, job: Job, output: Tokens) -> None:
        self.totals["checked_outputs"] += 1
        expected = cold_run(job.prompt, len(output), job.namespace[1], job.media)
        is_right = len(output) == 0 or np.array_equal(output, expected)
        self.totals["wrong_outputs"] += int(not is_right)

    # -- arrivals and aborts

    def _arrive_at(self, name: Id, step: int) -> None:
        heapq.heappush(self._arrivals, (step, self._place[name], name))

    def _arrive(self) -> None:
        while self._arrivals and self._arrivals[0][0] <= self.step_index:
            self._admit_request(heapq.heappop(self._arrivals)[2])

    def _admit_request(self, name: Id) -> None:
        request = self._requests[name]
        job = self._make_job(request)
        self.jobs[name] = job
        if request.abort_step is not None:
            if request.abort_step <= self.step_index:
                self._finish_aborted(job)
                return
            heapq.heappush(self._aborts, (request.abort_step, self._place[name], name))
        refusal = self.scheduler.refusal(job)
        if refusal is None:
            self.scheduler.add(job)
            return
        job.state = JobState.DONE
        self.emit("refused", {"id": name, "code": refusal.code, **refusal.fields})
        for follower in self._followers.pop(name, ()):
            arrival = self._requests[follower].arrival_step
            self._arrive_at(follower, max(self.step_index + 1, arrival))

    def _make_job(self, request: TraceRequest) -> Job:
        prompt = request.prompt
        if request.continues:
            assert request.after is not None
            before = self.jobs[request.after]
            prompt = np.concatenate([before.prompt, before.outputs, prompt])
        self._order += 1
        return Job(
            request.id,
            prompt,
            request.max_tokens,
            request.priority,
            self._order,
            (request.salt, request.adapter),
            _inside(request.media, len(prompt)),
            not request.no_cache_read,
        )

    def _abort(self) -> None:
        while self._aborts and self._aborts[0][0] <= self.step_index:
            job = self.jobs[heapq.heappop(self._aborts)[2]]
            if job.state is not JobState.DONE:
                self.scheduler.abort(job)
                self._finish_aborted(job)

    def _finish_aborted(self, job: Job) -> None:
        job.state = JobState.DONE
        self.emit("finished", {"id": job.name, "output": job.outputs, "reason": "abort"})

    # -- steps

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work or bool(self._arrivals)

    def step(self) -> None:
        """One step; the clock jumps to the next arrival where nothing runs."""
        if not self.scheduler.has_work and self._arrivals:
            self.step_index = max(self.step_index, self._arrivals[0][0])
        self._arrive()
        self._abort()
        if self.scheduler.has_work:
            self._run_step()
        self.step_index += 1

    def _run_step(self) -> None:
        begin = perf_counter_ns()
        plan = self.scheduler.schedule()
        spent = perf_counter_ns() - begin
        assert not plan.is_empty, "there is work, and a step of nothing"
        self._tell_step(plan)
        self._measure()
        self.device.run_ops()
        self.cache.arena.is_frozen = True
        tokens, num_new = self._decode(plan)
        first: dict[int, int] = {}
        for part in plan.prefill:
            token = self.device.prefill(part)
            if token is not None:
                first[part.row] = token
        self.cache.arena.is_frozen = False
        begin = perf_counter_ns()
        self.scheduler.complete(plan, tokens, num_new, first)
        self._times.append(spent + perf_counter_ns() - begin)
        self.totals["steps"] += 1

    def _decode(self, plan: StepPlan) -> tuple[Tokens, Ints]:
        scheduler, rows = self.scheduler, plan.rows
        jobs = [job for row in rows.tolist() if (job := scheduler.jobs[row]) is not None]
        last = scheduler.out[rows, scheduler.num_out[rows] - 1]
        ones = np.ones(len(rows), np.int64)
        if scheduler.limits.width == 1:
            return self.device.decode(jobs, rows, plan.starts, last)[:, None], ones
        tokens = np.zeros((len(rows), scheduler.limits.width), np.int32)
        for index, (job, row) in enumerate(zip(jobs, rows.tolist(), strict=True)):
            start, width = int(plan.starts[index]), int(plan.counts[index])
            right = self._num_right(job.name)
            found = self.device.verify(job, row, start, int(last[index]), width, right)
            tokens[index, : len(found)] = found
            ones[index] = len(found)
        return tokens, ones

    def _num_right(self, name: Id) -> int:
        """Drafts that this verify of a request will accept."""
        accept, turn = self.config.speculative.accept, self._verified.get(name, 0)
        self._verified[name] = turn + 1
        if not isinstance(accept, int):
            return accept[turn % len(accept)]
        key = [self.config.seed, accept, self._place[name], turn]
        return int(np.random.default_rng(key).integers(0, self.config.speculative.width))

    def _tell_step(self, plan: StepPlan) -> None:
        for op in self.cache.arena.ops:
            if isinstance(op, Move):
                sizes = {"page": self.cache.shape.page_bytes, "state": self.cache.shape.state_bytes}
                count = len(op.src)
                fields = {"kind": _KIND_NAMES[op.kind], "items": count}
                self.emit("moved", fields | {"bytes": count * sizes[op.kind]})
        for row, start, count in zip(
            plan.rows.tolist(), plan.starts.tolist(), plan.counts.tolist(), strict=True
        ):
            job = self.scheduler.jobs[row]
            assert job is not None
            self._tell_chunk(job.name, start, count)
        for part in plan.prefill:
            self._tell_chunk(part.job.name, part.start, part.stop - part.start)

    def _tell_chunk(self, name: Id, start: int, count: int) -> None:
        self.totals["computed_tokens"] += count
        self.emit("chunk", {"id": name, "start": start, "tokens": count})

    def _measure(self) -> None:
        arena, rows, shape = self.cache.arena, self.cache.rows, self.cache.shape
        is_open = rows.is_open
        room = rows.num_pages[is_open] * shape.page_tokens - rows.context[is_open]
        found = {
            "peak_mla_bytes": arena.pages.live_bytes,
            "peak_state_bytes": arena.slots.live_bytes,
            "waste_bytes": int(room.sum()) * shape.token_bytes,
        }
        self._peaks = {name: max(self._peaks[name], value) for name, value in found.items()}
        self._max_running = max(self._max_running, self.scheduler.num_running)

    def run(self) -> dict[str, Any]:
        """Run to the end; returns the summary, which is also the last event."""
        while self.has_work:
            self.step()
        if self._check:
            self.cache.check_integrity()
        self.drop_cache()
        summary = self.summary()
        self._write(summary)
        return summary

    def drop_cache(self) -> None:
        """Forget every prefix; these are no evictions and make no events."""
        self.cache.observe = lambda event, fields: None
        self.cache.drop_all()
        self.device.run_ops()

    def summary(self) -> dict[str, Any]:
        """Totals so far; ``leaked_*`` count what is live, so ask after ``drop_all``."""
        arena = self.cache.arena
        times = np.array(self._times or [0]) / 1000
        return {
            "event": "summary",
            "step": self.step_index,
            **self.totals,
            "leaked_pages": arena.pages.num_live,
            "leaked_slots": arena.slots.num_live,
            **self._peaks,
            "step_us_median": int(np.median(times)),
            "step_us_p99": int(np.percentile(times, 99)),
            "max_running": self._max_running,
            "moved_items": arena.num_moved,
            **{f"num_{name}": self._counts.get(name, 0) for name in _COUNTED},
        }


def _inside(media: tuple[Media, ...], num_tokens: int) -> tuple[Media, ...]:
    """Media as far as the prompt reaches."""
    cut = [Media(m.id, m.start, min(m.stop, num_tokens)) for m in media]
    return tuple(m for m in cut if m.start < m.stop)


_COUNTED = (
    "admitted", "resumed", "finished", "refused", "preempted", "checkpoint", "copy", "evicted",
    "spilled", "restored",
)  # fmt: skip
