"""One step on the executor: decodes or verifies, prefill chunks, and the tokens they choose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from k3compiler.runtime.cache.engine_cache import EngineCache
from k3compiler.runtime.decode_loop import DecodeLoop, SamplerColumns
from k3compiler.runtime.executor import Executor, StepOutput
from k3compiler.runtime.metrics import EngineCounters, RequestClock
from k3compiler.runtime.request import FinishReason, Request
from k3compiler.runtime.sampler import sample
from k3compiler.runtime.scheduler.continuous import ContinuousScheduler, PrefillPart, StepPlan
from k3compiler.runtime.scheduler.job import Job
from k3compiler.runtime.speculation import Drafter, Known
from k3compiler.runtime.step import SamplerRow, SeqChunk


@dataclass(frozen=True, slots=True)
class Live:
    """A request in the engine: as the scheduler sees it, as its caller does, and its times."""

    job: Job
    request: Request
    clock: RequestClock


@dataclass(frozen=True, slots=True)
class StepResult:
    """What :meth:`ContinuousScheduler.complete` takes.

    Shapes: ``tokens [rows, width] i32``, of which ``num_new [rows]`` count; ``first``: row -> first
    token of a prompt that ended; ``stopped``: rows whose last token ends them.
    """

    tokens: NDArray[np.int32]
    num_new: NDArray[np.int64]
    first: dict[int, int]
    stopped: list[int]


class StepRunner:
    """Runs step plans.

    Args:
        live: requests by job name; shared with the engine, which adds and removes them.
        drafter: proposes the tokens that a decode step verifies.
    """

    def __init__(
        self,
        executor: Executor,
        cache: EngineCache,
        scheduler: ContinuousScheduler,
        live: Mapping[str | int, Live],
        counters: EngineCounters,
        drafter: Drafter | None,
    ) -> None:
        self._executor, self._cache, self._scheduler = executor, cache, scheduler
        self._live, self._counters, self._drafter = live, counters, drafter
        self._samplers = SamplerColumns(scheduler.limits.max_seqs)
        self._decodes = DecodeLoop(executor, cache, scheduler, self._samplers)
        self._decodes.runs_ahead &= drafter is None  # a row with drafts does not decode

    def run(self, plan: StepPlan) -> StepResult:
        """Decodes (or verifies), then prompts."""
        stopped: list[int] = []
        if self._drafter is None:
            tokens = self._run_decodes(plan.rows, stopped)[:, None]
            num_new = np.ones(len(plan.rows), np.int64)
        else:
            tokens, num_new = self._run_verifies(plan, self._drafter, stopped)
        first = self._run_prefill(plan.prefill, stopped)
        return StepResult(tokens, num_new, first, stopped)

    def _run_decodes(self, rows: NDArray[np.int64], stopped: list[int]) -> NDArray[np.int32]:
        """A token of every row, in launches of as many as a plan takes. Shapes: ``[rows] i32``."""
        tokens = np.zeros(len(rows), np.int32)
        for some, output in self._decodes.run(rows):
            self._observe_rows(rows[some], output)
            if output.next_token is not None:
                tokens[some] = output.next_token
                self._accept_all(rows[some], output.next_token, stopped)
                continue
            for index, row in enumerate(rows[some].tolist()):
                request = self._request_of(row)
                tokens[some.start + index] = self._accept(row, request, output, index, stopped)
        return tokens

    def _accept_all(
        self, rows: NDArray[np.int64], tokens: NDArray[np.int32], stopped: list[int]
    ) -> None:
        """What :meth:`_accept` does, of many rows; only those that end are looked at one by one."""
        lives = [self._live_of(row) for row in rows.tolist()]
        self._counters.tokens([live.clock for live in lives])
        ending = self._samplers.stops(rows, tokens) | self._scheduler.is_last(rows)
        for live, token, ends in zip(lives, tokens.tolist(), ending.tolist(), strict=True):
            if ends:
                live.request.accept(token)
            else:
                live.request.outputs.append(token)
        stopped.extend(
            row
            for row, live in zip(rows.tolist(), lives, strict=True)
            if live.request.finish is FinishReason.STOP
        )

    def _run_verifies(
        self, plan: StepPlan, drafter: Drafter, stopped: list[int]
    ) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Rows with drafts verify them in one prefill launch; rows without decode."""
        drafts = self._propose(drafter, plan)
        tokens = np.zeros((len(drafts), self._scheduler.limits.width), np.int32)
        num_new = np.ones(len(drafts), np.int64)
        plain = np.flatnonzero([not draft for draft in drafts])
        tokens[plain, 0] = self._run_decodes(plan.rows[plain], stopped)
        verified = [index for index, draft in enumerate(drafts) if draft]
        if not verified:
            return tokens, num_new
        rows = [int(plan.rows[index]) for index in verified]
        chunks = [
            self._verify_chunk(row, drafts[index])
            for row, index in zip(rows, verified, strict=True)
        ]
        output = self._executor.prefill(chunks)
        self._observe_chunks(chunks, output)
        begin = 0
        for row, index, chunk in zip(rows, verified, chunks, strict=True):
            found = self._accept_drafts(row, drafts[index], output, begin, stopped)
            tokens[index, : len(found)] = found
            num_new[index] = len(found)
            self._cache.commit(row, len(found), chunk.num_tokens)
            begin += chunk.num_tokens
        self._counters.draft_tokens += sum(len(drafts[index]) for index in verified)
        self._counters.accepted_tokens += int(num_new[verified].sum()) - len(verified)
        return tokens, num_new

    def _propose(self, drafter: Drafter, plan: StepPlan) -> list[list[int]]:
        """The drafts of every row; none where only one token is left to choose."""
        drafts = [list[int]() for _ in plan.rows]
        asked = np.flatnonzero(plan.counts > 1).tolist()
        if not asked:
            return drafts
        most = (plan.counts[asked] - 1).tolist()
        found = drafter.propose([self._known(int(plan.rows[index])) for index in asked], most)
        for index, count, tokens in zip(asked, most, found, strict=True):
            assert len(tokens) <= count, f"{len(tokens)} drafts, at most {count} were asked for"
            drafts[index] = [int(token) for token in tokens]
        return drafts

    def _known(self, row: int) -> Known:
        request = self._request_of(row)
        return Known([*request.prompt, *request.outputs], self._cache.page_rows(row).tolist())

    def _observe_rows(self, rows: NDArray[np.int64], output: StepOutput) -> None:
        """Show the drafter what the target computed of each row's token."""
        if self._drafter is None or output.taps is None:
            return
        positions = self._cache.hybrid.rows.context[rows]
        tables = self._cache.page_tables(rows, self._executor.sizes.page_columns)
        pages = tables[np.arange(len(rows)), positions // self._cache.page_tokens]
        self._drafter.observe(output.taps, pages.astype(np.int64), positions)

    def _observe_chunks(self, chunks: Sequence[SeqChunk], output: StepOutput) -> None:
        if self._drafter is None or output.taps is None:
            return
        each = [np.arange(chunk.context_tokens, chunk.end_tokens) for chunk in chunks]
        pages = [
            np.asarray(chunk.pages)[positions // self._cache.page_tokens]
            for chunk, positions in zip(chunks, each, strict=True)
        ]
        self._drafter.observe(output.taps, np.concatenate(pages), np.concatenate(each))

    def _verify_chunk(self, row: int, drafts: list[int]) -> SeqChunk:
        """The last token and its drafts; the state of every position but the last is kept."""
        last = int(self._scheduler.out[row, self._scheduler.num_out[row] - 1])
        start = int(self._cache.hybrid.rows.context[row])
        kept = {start + 1 + i: self._cache.scratch_row(row, i) for i in range(len(drafts))}
        fed = np.array([last, *drafts], np.int32)
        return self._chunk(row, fed, start, self._request_of(row), kept, "all")

    def _accept_drafts(
        self, row: int, drafts: list[int], output: StepOutput, begin: int, stopped: list[int]
    ) -> list[int]:
        """Choose position by position for as long as the draft was what would have been chosen.

        The choice at a position is the one that decoding would make there (same logits, same random
        numbers), so drafts change no distribution.
        """
        request, found = self._request_of(row), list[int]()
        for index in range(len(drafts) + 1):
            found.append(self._accept(row, request, output, begin + index, stopped))
            is_right = index < len(drafts) and found[-1] == drafts[index]
            if request.finish is not None or not is_right:
                break
        return found

    def _run_prefill(self, parts: Sequence[PrefillPart], stopped: list[int]) -> dict[int, int]:
        """The step's chunks in one launch; row -> first token where a prompt ends."""
        first: dict[int, int] = {}
        if not parts:
            return first
        ending = [part.row for part in parts if part.is_last]
        requests = [self._request_of(row) for row in ending]
        chunks = [self._prefill_chunk(part) for part in parts]
        output = self._executor.prefill(chunks)
        self._observe_chunks(chunks, output)
        for index, (row, request) in enumerate(zip(ending, requests, strict=True)):
            first[row] = self._accept(row, request, output, index, stopped)
            self._samplers.set(row, request)
        return first

    def _request_of(self, row: int) -> Request:
        return self._live_of(row).request

    def _live_of(self, row: int) -> Live:
        job = self._scheduler.jobs[row]
        assert job is not None, "a scheduled row has a job"
        return self._live[job.name]

    def _accept(
        self, row: int, request: Request, output: StepOutput, index: int, stopped: list[int]
    ) -> int:
        """Choose a token, tell its request, and note where it ends it."""
        token = _choose(request, output, index)
        request.accept(token)
        self._counters.token(self._live[str(request.id)].clock)
        if request.finish is FinishReason.STOP:
            stopped.append(row)
        return token

    def _prefill_chunk(self, part: PrefillPart) -> SeqChunk:
        checkpoints = {p: self._cache.slot_row(slot) for p, slot in part.checkpoints.items()}
        request, tokens = self._request_of(part.row), part.job.known[part.start : part.stop]
        logits = "last" if part.is_last else "none"
        return self._chunk(part.row, tokens, part.start, request, checkpoints, logits)

    def _chunk(
        self,
        row: int,
        tokens: NDArray[np.int32],
        start: int,
        request: Request,
        checkpoints: dict[int, int],
        logits: Literal["none", "last", "all"],
    ) -> SeqChunk:
        return SeqChunk(
            tokens,
            start,
            self._cache.slot_row(int(self._cache.hybrid.rows.slot[row])),
            self._cache.page_rows(row).tolist(),
            logits,
            checkpoints,
            _sampler(request),
            is_verify=logits == "all",
        )


def _sampler(request: Request) -> SamplerRow:
    """How the request's next token is chosen."""
    params = request.params
    temperature = 0.0 if params.is_greedy else params.temperature
    return SamplerRow(temperature, params.top_k, params.top_p, request.seed, len(request.outputs))


def _choose(request: Request, output: StepOutput, row: int) -> int:
    """What the plan chose, or where it ends with logits, what the host does."""
    if output.next_token is not None:
        return int(output.next_token[row])
    assert output.logits is not None, "a plan ends with tokens or logits"
    return sample(output.logits[row], _sampler(request))
