"""Continuous batching over a hybrid cache: chunked prefill beside decodes, under a token budget.

A step, top to bottom:

    decodes     every decoding row, one page more where its last one is full; one array operation each
    prefills    running prompts in order of rank, then waiting ones for as long as memory lasts; each
                gets at most half of what is left while others follow, so a long prompt shares
    checkpoints slots for the states that this step's chunks pass
    complete    contexts advance, units and checkpoints are published, finished rows are closed

Cuts lie on the absolute kda grid except at a prompt's end. Memory: admission promises a prompt's
pages; decoding grows page by page, and where nothing can be evicted the job of the worst rank is
preempted: its units and states go to the index (from there to the lower tier where they are evicted)
and it starts again from whatever of them is left.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from k3compiler.package.expr import cdiv
from k3compiler.runtime.cache.hybrid import NO_HIT, Hit, HybridCache
from k3compiler.runtime.cache.ops import Ints
from k3compiler.runtime.cache.unit_keys import Tokens
from k3compiler.runtime.scheduler.job import Job, JobState

Emit = Callable[[str, dict[str, Any]], None]


@dataclass(frozen=True, slots=True)
class Retention:
    """When states are kept.

    Attributes:
        prompt_end: at the last unit that a repeat of the prompt can use, and at its end.
        second_hit: where a request's MLA hit reaches further than its state hit.
        interval_tokens: also every so many tokens; 0 is never.
        generation_end: at the last unit of prompt and completion.
        spare: at log-spaced distances from the prompt's end and every half step's budget, while
            slots lie free.
    """

    prompt_end: bool = True
    second_hit: bool = True
    interval_tokens: int = 0
    generation_end: bool = True
    spare: bool = True


@dataclass(frozen=True, slots=True)
class Limits:
    """Of a step. ``width`` tokens are verified by a decode step (1: no speculation).

    ``prefill_tokens`` bounds prompt tokens alone; None is whatever decodes leave of the budget.
    """

    max_batched_tokens: int
    max_seqs: int
    chunk_tokens: int
    max_model_tokens: int
    width: int = 1
    prefill_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class PrefillPart:
    """One job's chunk ``[start, stop)``; ``checkpoints`` are position -> slot."""

    job: Job
    row: int
    start: int
    stop: int
    checkpoints: dict[int, int]

    @property
    def is_last(self) -> bool:
        return self.stop == len(self.job.known)


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What a step runs. Decoding rows as columns: ``rows``, ``starts``, ``counts`` (tokens fed)."""

    rows: Ints
    starts: Ints
    counts: Ints
    prefill: list[PrefillPart]

    @property
    def is_empty(self) -> bool:
        return not len(self.rows) and not self.prefill


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request can never run, with the numbers."""

    code: str
    fields: dict[str, int]


class ContinuousScheduler:
    """See the module.

    Args:
        emit: told of ``admitted``, ``resumed``, ``checkpoint``, ``preempted``, ``finished``.
    """

    def __init__(
        self, cache: HybridCache, limits: Limits, retention: Retention, emit: Emit | None = None
    ) -> None:
        assert limits.max_batched_tokens >= limits.chunk_tokens, "a step has room for a kda chunk"
        assert cache.unit % limits.chunk_tokens == 0, "a match unit is whole kda chunks"
        self.cache, self.limits, self.retention = cache, limits, retention
        self._emit: Emit = emit or (lambda event, fields: None)
        rows = limits.max_seqs
        self.waiting: list[Job] = []
        self.jobs: list[Job | None] = [None] * rows
        self.known: Ints = np.zeros(rows, np.int64)  # prompt and outputs
        self.limit: Ints = np.zeros(rows, np.int64)
        self.num_out: Ints = np.zeros(rows, np.int64)
        self.out: NDArray[np.int32] = np.zeros((rows, 16), np.int32)
        self._decoding: Ints = np.zeros(0, np.int64)  # in order of rank
        self._prefilling: list[Job] = []
        self._turn = 0
        self._is_starved = self._is_tight = False
        self._blocked_at = -1
        self.num_preempted = 0

    # -- requests

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self._prefilling or len(self._decoding))

    @property
    def num_running(self) -> int:
        return len(self._prefilling) + len(self._decoding)

    def refusal(self, job: Job) -> Refusal | None:
        """Whether the job could never run, even alone."""
        prompt, most = len(job.prompt), self.limits.max_model_tokens
        numbers = {"prompt_tokens": prompt, "max_tokens": job.max_new}
        if prompt == 0 or job.max_new < 1:
            return Refusal("K3-R003", numbers)
        if job.limit > most:
            return Refusal("K3-R003", numbers | {"max_model_tokens": most})
        pages = cdiv(job.limit - 1, self.cache.shape.page_tokens)
        if self.cache.arena.fits(1, pages):
            return None
        shape = self.cache.shape
        need = shape.state_bytes + pages * shape.page_bytes
        return Refusal("K3-R011", numbers | {"need_bytes": need, "arena_bytes": shape.num_bytes})

    def add(self, job: Job) -> None:
        """Queue a job that is not refused."""
        insort(self.waiting, job, key=lambda j: j.rank)
        self._blocked_at = -1

    def abort(self, job: Job) -> None:
        """End a job wherever it is; between steps."""
        if job.state is JobState.WAITING:
            self.waiting.remove(job)
        elif job.state is JobState.RUNNING:
            self._take_off(job)
        job.state = JobState.DONE
        self._blocked_at = -1

    def is_last(self, rows: Ints) -> NDArray[np.bool_]:
        """Whether the next token of a row ends it by its length."""
        return self.known[rows] + 1 >= self.limit[rows]

    def outputs(self, row: int) -> Tokens:
        """What a running row generated."""
        return self.out[row, : self.num_out[row]].copy()

    # -- a step

    def schedule(self) -> StepPlan:
        """Decide the step; memory operations are in ``cache.arena.ops``, to be run first."""
        self._is_tight = False
        plan = self._plan(self._decode_rows())
        while plan.is_empty and len(self._decoding):
            # The rows whose turn it was were preempted, or made room for a prompt that found none.
            plan = self._plan(self._in_turn(self.limits.max_batched_tokens))
        return plan

    def _plan(self, rows: Ints) -> StepPlan:
        rows = self._grow_decodes(rows)
        fed = int(self._counts(rows).sum())
        budget = self.limits.max_batched_tokens - fed
        grants = self._grants(min(budget, self.limits.prefill_tokens or budget))
        if self._is_tight:
            rows = rows[np.isin(rows, self._decoding)]
        starts, counts = self.cache.rows.context[rows], self._counts(rows)
        prefill = [self._part(job, stop) for job, stop in grants.items()]
        if self.retention.generation_end and self.cache.shape.prefix_cache:
            unit = self.cache.unit
            self.cache.roll(rows[(starts + counts) // unit > starts // unit])
        return StepPlan(rows, starts, counts, prefill)

    def _counts(self, rows: Ints) -> Ints:
        """Tokens that decoding rows feed: one, or what they verify."""
        return np.minimum(self.limits.width, self.limit[rows] - self.known[rows])

    def _decode_rows(self) -> Ints:
        """All decoding rows, or as many as the budget lets, in turns.

        Where they would leave no room for a kda chunk of a prompt, every second step makes it.
        """
        rows, limits = self._decoding, self.limits
        room = limits.max_batched_tokens
        can_admit = bool(self.waiting and self.cache.rows.num_free) and not self._is_blocked
        wants_prefill = bool(self._prefilling) or can_admit
        if wants_prefill and room - len(rows) * limits.width < limits.chunk_tokens:
            self._is_starved = not self._is_starved
            room -= 0 if self._is_starved else limits.chunk_tokens
        return self._in_turn(room)

    def _in_turn(self, room: int) -> Ints:
        """As many decoding rows as ``room`` tokens feed, taking turns."""
        rows, count = self._decoding, room // self.limits.width
        if count >= len(rows):
            return rows
        first = self._turn % len(rows)
        self._turn = first + count
        return np.sort(np.roll(rows, -first)[:count])

    @property
    def _is_blocked(self) -> bool:
        """The head of the queue found no memory, and none was given back since."""
        return self._blocked_at == self.cache.changes

    def _grow_decodes(self, rows: Ints) -> Ints:
        """Pages for every decoding row; preempts until they are there."""
        while len(rows):
            if self.cache.grow_all(rows, self.cache.rows.context[rows] + self._counts(rows)):
                break
            victim = self._worst()
            rows = rows[rows != victim.row]
            self._preempt(victim)
        return rows

    def _running(self) -> list[Job]:
        found = [self.jobs[row] for row in self._decoding.tolist()]
        return [*self._prefilling, *(job for job in found if job is not None)]

    def _worst(self) -> Job:
        running = self._running()
        assert len(running) > 1, "a job that fits alone found no memory"
        return max(running, key=lambda j: j.rank)

    # -- prefill

    def _grants(self, budget: int) -> dict[Job, int]:
        """Jobs in prefill and where their chunks of this step stop."""
        grants: dict[Job, int] = {}
        if budget <= 0:
            return grants
        for job in self._candidates():
            start = int(self.cache.rows.context[job.row])
            is_last = job is self._prefilling[-1] and not self.waiting
            share = budget if is_last else max(self.limits.chunk_tokens, budget // 2)
            stop = self._cut(job, start, min(share, budget))
            if stop > start and self._grow_prefill(job, stop):
                grants[job] = stop
                budget -= stop - start
            if budget < self.limits.chunk_tokens:
                break
        return self._share_rest(grants, budget)

    def _share_rest(self, grants: dict[Job, int], budget: int) -> dict[Job, int]:
        """What is left goes to the first in rank that can use it, without a preemption."""
        for job, granted in grants.items():
            if job.state is not JobState.RUNNING:
                continue
            stop = self._cut(job, granted, budget)
            if stop > granted and self.cache.grow(job.row, stop):
                budget -= stop - granted
                grants[job] = stop
        return {job: stop for job, stop in grants.items() if job.state is JobState.RUNNING}

    def _cut(self, job: Job, start: int, budget: int) -> int:
        """Where a chunk stops: the end of the prompt, or a multiple of the kda chunk."""
        end = len(job.known)
        if end - start <= budget:
            return end
        chunk = self.limits.chunk_tokens
        return max(start, (start + budget) // chunk * chunk)

    def _grow_prefill(self, job: Job, stop: int) -> bool:
        while not self.cache.grow(job.row, stop):
            victim = self._worst()
            self._preempt(victim)
            if victim is job:
                return False
        return True

    def _candidates(self) -> Iterator[Job]:
        """Running prompts in order of rank, then new ones; asking for the next admits it."""
        for job in list(self._prefilling):
            if job.state is JobState.RUNNING:
                yield job
        if self._is_blocked:
            return
        for job in list(self.waiting):
            if self._is_tight or not self.cache.rows.num_free:
                return
            if self._is_deferred(job):
                continue
            hit = self._probe(job)
            if self._defer(job, hit):
                continue
            if not self._admit(job, hit):
                self._blocked_at = self.cache.changes
                return
            yield job

    def _probe(self, job: Job) -> Hit:
        if not job.reads_cache or not self.cache.shape.prefix_cache:
            return NO_HIT
        return self.cache.probe(job.keys(self.cache.unit), len(job.known))

    def _is_deferred(self, job: Job) -> bool:
        """Whether what the job waits for is still being computed."""
        other = job.waits_for
        if other is None:
            return False
        if other.state is JobState.RUNNING and other in self._prefilling:
            return bool(self.cache.rows.context[other.row] < job.waits_until)
        job.waits_for = None
        return False

    def _defer(self, job: Job, hit: Hit) -> bool:
        """Wait for a running prompt that is about to compute more of this prefix.

        Waiting costs at most the steps that computing it here would. Where second hits are kept,
        the other prompt takes a checkpoint at the junction, so this one profits already.
        """
        depth, unit = len(hit.path), self.cache.unit
        if depth * unit <= hit.cell_tokens:
            return False
        for other in self._prefilling:
            path = self.cache.rows.nodes[other.row]
            is_on_path = len(path) >= depth and path[depth - 1] == hit.path[-1]
            if not is_on_path or other.priority > job.priority:
                continue
            if self.retention.second_hit:
                other.plan.setdefault(depth * unit, "junction")
            reach = max((p for p in other.plan if p <= depth * unit), default=0)
            if max(hit.tokens, int(self.cache.rows.context[other.row])) < reach:
                job.waits_for, job.waits_until = other, reach
                return True
        return False

    def _admit(self, job: Job, hit: Hit) -> bool:
        """Open a row; alone, a job gives up its hit rather than wait for memory."""
        row = self._open(job, hit, steal=False)
        if row is None and self.num_running == 0:
            row = self._open(job, hit, steal=True)
            if row is None:
                hit = Hit(hit.path[:0], 0, hit.cell_tokens, False)
                row = self._open(job, hit, steal=False)
            assert row is not None, "a job that fits alone found no memory"
        if row is None:
            return False
        self.waiting.remove(job)
        job.row, job.state = row, JobState.RUNNING
        self.jobs[row] = job
        insort(self._prefilling, job, key=lambda j: j.rank)
        self.known[row], self.limit[row] = len(job.known), job.limit
        self._start_outputs(row, job)
        if self.cache.shape.prefix_cache:
            self.cache.plan_path(row, job.keys(self.cache.unit))
            job.plan = self._checkpoints(len(job.known), hit)
        self._tell_admitted(job, hit)
        return True

    def _open(self, job: Job, hit: Hit, *, steal: bool) -> int | None:
        return self.cache.admit(
            hit,
            len(job.known),
            headroom=self.num_running,
            steal=steal,
            namespace=job.namespace,
            media=job.media,
        )

    def _start_outputs(self, row: int, job: Job) -> None:
        columns = self.out.shape[1]
        if job.max_new > columns:
            grown = np.zeros((len(self.out), max(job.max_new, 2 * columns)), np.int32)
            grown[:, :columns] = self.out
            self.out = grown
        self.num_out[row] = len(job.outputs)
        self.out[row, : len(job.outputs)] = job.outputs

    def _tell_admitted(self, job: Job, hit: Hit) -> None:
        tier = "none" if hit.tokens == 0 else "host" if hit.is_host else "device"
        fields = {
            "id": job.name,
            "hit_tokens": hit.tokens,
            "mla_hit_tokens": hit.cell_tokens,
            "state_hit_tokens": hit.tokens,
            "tier": tier,
        }
        self._emit("resumed" if job.was_admitted else "admitted", fields)
        job.was_admitted = True

    def _checkpoints(self, end: int, hit: Hit) -> dict[int, str]:
        """Positions past the hit where prefill keeps a state, and why; the stronger reason wins."""
        keep, unit = self.retention, self.cache.unit
        last = (end - 1) // unit * unit
        plan: dict[int, str] = {}
        if keep.spare:
            distances = (unit << k for k in range(end.bit_length()))
            step = cdiv(self.limits.max_batched_tokens, 2 * unit) * unit
            plan |= dict.fromkeys(range(step, end, step), "spare")
            plan |= {last - d: "spare" for d in distances if d < last}
        if keep.interval_tokens:
            plan |= dict.fromkeys(range(0, end + 1, keep.interval_tokens), "interval")
        if keep.prompt_end:
            plan |= {last: "prompt_end", end // unit * unit: "prompt_end"}
        if keep.second_hit and hit.cell_tokens > hit.tokens:
            plan.setdefault(hit.cell_tokens, "junction")
            if plan[hit.cell_tokens] == "spare":
                plan[hit.cell_tokens] = "junction"
        return {p: reason for p, reason in plan.items() if p > hit.tokens}

    def _part(self, job: Job, stop: int) -> PrefillPart:
        """The chunk, with slots for the checkpoints that it passes."""
        row, start = job.row, int(self.cache.rows.context[job.row])
        taken: dict[int, int] = {}
        passed = [p for p in job.plan if start < p <= stop]
        for position in sorted(passed, key=lambda p: (job.plan[p] == "spare", -p)):
            is_spare = job.plan[position] == "spare"
            if self.cache.has_state(row, position):
                if not is_spare:
                    self.cache.keep_state(row, position)
                continue
            slot = self.cache.take_slot(spare=is_spare)
            if slot is not None:
                taken[position] = slot
        return PrefillPart(job, row, start, stop, taken)

    # -- after a step

    def complete(
        self,
        plan: StepPlan,
        tokens: Tokens,
        num_new: Ints,
        first_tokens: dict[int, int],
        stopped: Collection[int] = (),
    ) -> None:
        """Take a step's results.

        Shapes: ``tokens [rows, width] i32``, of which ``num_new [rows]`` were accepted (one at
        least); ``first_tokens``: row -> token, for chunks that ended their prompt; ``stopped``: rows
        whose last token ends them and is no part of the output.
        """
        columns, rows, unit = self.cache.rows, plan.rows, self.cache.unit
        columns.context[rows] += num_new
        context = columns.context[rows]
        boundary = context // unit * unit
        crossed = (boundary > plan.starts) & (columns.rolled[rows] > 0)
        columns.rolled_at[rows[crossed]] = boundary[crossed]
        for index in range(tokens.shape[1] if len(rows) else 0):
            some = slice(None) if tokens.shape[1] == 1 else num_new > index
            self.out[rows[some], self.num_out[rows[some]] + index] = tokens[some, index]
        self.num_out[rows] += num_new
        self.known[rows] += num_new
        for part in plan.prefill:
            self._complete_part(part, first_tokens)
        self.cache.step_done()
        for row in stopped:
            self.num_out[row] -= 1
            self.known[row] -= 1
            self._finish(row, "stop")
        done = self._decoding[self.known[self._decoding] >= self.limit[self._decoding]]
        for row in done.tolist():
            self._finish(row, "length")

    def cancel(self, plan: StepPlan) -> list[Job]:
        """A step failed midway: nobody knows what its rows' states are.

        Ends the jobs of the step, publishing nothing of them; returns those.
        """
        for part in plan.prefill:
            for slot in part.checkpoints.values():
                self.cache.return_slot(slot)
        rows = [*plan.rows.tolist(), *(part.row for part in plan.prefill)]
        ended = [job for row in rows if (job := self.jobs[row]) is not None]
        for job in ended:
            self._take_off(job, publish=False)
            job.state = JobState.DONE
        self.cache.step_done()
        self._blocked_at = -1
        return ended

    def _complete_part(self, part: PrefillPart, first_tokens: dict[int, int]) -> None:
        job, row = part.job, part.row
        self.cache.rows.context[row] = part.stop
        self.cache.publish(row)
        for position in sorted(part.checkpoints):
            slot, reason = part.checkpoints[position], job.plan[position]
            if self.cache.publish_state(row, position, slot, spare=reason == "spare"):
                fields = {"id": job.name, "tokens": position, "reason": reason}
                self._emit("checkpoint", fields)
        if part.is_last:
            self.out[row, self.num_out[row]] = first_tokens[row]
            self.num_out[row] += 1
            self.known[row] += 1
            self._prefilling.remove(job)
            self._decoding = np.append(self._decoding, row)
            self._decoding = np.array(sorted(self._decoding.tolist(), key=self._rank), np.int64)

    def _rank(self, row: int) -> tuple[int, int]:
        job = self.jobs[row]
        assert job is not None, "an empty row has no rank"
        return job.rank

    def _finish(self, row: int, reason: str) -> None:
        job = self.jobs[row]
        assert job is not None, "an empty row finished"
        self._take_off(job, keep_state=self.retention.generation_end)
        job.state = JobState.DONE
        self._emit("finished", {"id": job.name, "output": job.outputs, "reason": reason})

    def _preempt(self, job: Job) -> None:
        self._is_tight = True
        self.num_preempted += 1
        context = int(self.cache.rows.context[job.row])
        self._take_off(job)
        job.put_back(job.outputs)
        insort(self.waiting, job, key=lambda j: j.rank)
        self._emit("preempted", {"id": job.name, "tokens": context})

    def _take_off(self, job: Job, *, keep_state: bool = True, publish: bool = True) -> None:
        """Close a running job's row; its outputs stay with it."""
        row = job.row
        job.outputs = self.outputs(row)
        context = int(self.cache.rows.context[row])
        tokens = np.concatenate([job.prompt, job.outputs])[:context]
        donated = self.cache.close(row, tokens if publish else None, keep_state=keep_state)
        if donated:
            fields = {"id": job.name, "tokens": donated, "reason": "generation_end"}
            self._emit("checkpoint", fields)
        if job in self._prefilling:
            self._prefilling.remove(job)
        self._decoding = self._decoding[self._decoding != row]
        self.jobs[row] = None
