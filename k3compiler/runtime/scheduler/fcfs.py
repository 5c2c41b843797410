"""First come, first served: chunked prefill under a token budget, beside decode batches."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from k3compiler.package.manifest import Phase
from k3compiler.runtime.cache.manager import CacheManager
from k3compiler.runtime.request import FinishReason, Request, RequestState


@dataclass(frozen=True, slots=True)
class Batch:
    """One launch of a plan: requests and how many tokens each feeds."""

    phase: Phase
    requests: tuple[Request, ...]
    num_tokens: tuple[int, ...]


class FcfsScheduler:
    """Decides the batches of a step; prefill and decode are separate launches.

    A prompt is cut at absolute multiples of the kda chunk, except at its end.

    Args:
        cache: slots and pages; admission reserves a request's worst case.
        prefill_tokens: prompt tokens per step at most (at least one kda chunk).
        decode_rows: sequences per decode launch at most.
        chunk_tokens: the kda chunk.
    """

    def __init__(
        self, cache: CacheManager, *, prefill_tokens: int, decode_rows: int, chunk_tokens: int
    ) -> None:
        assert prefill_tokens >= chunk_tokens, "a step must have room for a kda chunk"
        self._cache = cache
        self._prefill_tokens, self._decode_rows = prefill_tokens, decode_rows
        self._chunk_tokens = chunk_tokens
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []

    @property
    def has_work(self) -> bool:
        return bool(self._waiting or self._running)

    def add(self, request: Request) -> None:
        """Queue a request; it must fit an empty cache."""
        assert self._cache.can_ever_open(request.max_tokens), "the request can never run"
        self._waiting.append(request)

    def abort(self, request: Request) -> None:
        """End a request wherever it is, and free its memory."""
        if request.finish is None:
            request.finish = FinishReason.ABORT
        if request in self._waiting:
            self._waiting.remove(request)
        self.retire()

    def schedule(self) -> Iterator[Batch]:
        """The step's batches: every decoding request once, then prefill under the budget.

        The caller runs each batch before it asks for the next one, and calls :meth:`retire` after
        the last.
        """
        decoding = [r for r in self._running if r.state is RequestState.DECODE]
        for start in range(0, len(decoding), self._decode_rows):
            rows = decoding[start : start + self._decode_rows]
            yield self._batch("decode", [(request, 1) for request in rows])
        parts = list(self._prefill_parts())
        if parts:
            yield self._batch("prefill", parts)

    def _batch(self, phase: Phase, parts: list[tuple[Request, int]]) -> Batch:
        for request, count in parts:
            assert request.cache is not None, "a scheduled request has no cache"
            self._cache.grow(request.cache, request.cache.context_tokens + count)
        requests, counts = zip(*parts, strict=True)
        return Batch(phase, requests, counts)

    def _prefill_parts(self) -> Iterator[tuple[Request, int]]:
        budget = self._prefill_tokens
        for request in self._in_prefill():
            count = self._cut(request, budget)
            if count == 0:
                return
            yield request, count
            budget -= count

    def _in_prefill(self) -> Iterator[Request]:
        """Running prompts first, then new ones for as long as memory lasts; order of arrival."""
        yield from [r for r in self._running if r.state is RequestState.PREFILL]
        while self._waiting:
            request = self._waiting[0]
            request.cache = self._cache.open(request.max_tokens)
            if request.cache is None:
                return
            self._running.append(self._waiting.popleft())
            yield request

    def _cut(self, request: Request, budget: int) -> int:
        """Prompt tokens to feed now: all that is left, or up to the last chunk boundary."""
        assert request.cache is not None, "a prefilling request has no cache"
        context = request.cache.context_tokens
        left = len(request.prompt) - context
        if left <= budget:
            return left
        return max(0, (context + budget) // self._chunk_tokens * self._chunk_tokens - context)

    def retire(self) -> list[Request]:
        """Free the memory of finished requests and forget them; returns them."""
        finished = [r for r in self._running if r.state is RequestState.FINISHED]
        for request in finished:
            assert request.cache is not None, "a running request has no cache"
            self._cache.close(request.cache)
            request.cache = None
            self._running.remove(request)
        return finished
