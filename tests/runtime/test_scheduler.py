"""FCFS: order, budget, absolute cuts, memory back at the end."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from k3compiler.runtime.cache.manager import CacheManager
from k3compiler.runtime.request import FinishReason, Request, RequestState
from k3compiler.runtime.sampling import SamplingParams
from k3compiler.runtime.scheduler.fcfs import Batch, FcfsScheduler

CHUNK = 8


def _request(index: int, prompt: int, new: int) -> Request:
    params = SamplingParams(max_tokens=new)
    return Request(index, tuple(range(prompt)), params, prompt + new, seed=0)


def _scheduler(
    pages: int = 40, slots: int = 5, budget: int = 20, rows: int = 2
) -> tuple[CacheManager, FcfsScheduler]:
    cache = CacheManager(num_pages=pages, num_slots=slots, page_tokens=4)
    scheduler = FcfsScheduler(cache, prefill_tokens=budget, decode_rows=rows, chunk_tokens=CHUNK)
    return cache, scheduler


def _run(batch: Batch) -> None:
    """Pretend that the device ran: advance, and choose token 1 where logits were due."""
    for request, count in zip(batch.requests, batch.num_tokens, strict=True):
        assert request.cache is not None
        assert len(request.uncached(count)) == count
        request.cache.context_tokens += count
        if request.cache.context_tokens == request.num_tokens:
            request.accept(1)


def test_long_prompt_is_cut_on_the_grid_beside_decode() -> None:
    _, scheduler = _scheduler()
    short, long = _request(0, 3, 4), _request(1, 30, 1)
    scheduler.add(short)
    scheduler.add(long)
    seen: list[list[tuple[str, list[tuple[int, int]]]]] = []
    while scheduler.has_work:
        step: list[tuple[str, list[tuple[int, int]]]] = []
        for batch in scheduler.schedule():
            ids = [r.id for r in batch.requests]
            step.append((batch.phase, list(zip(ids, batch.num_tokens, strict=True))))
            _run(batch)
        scheduler.retire()
        seen.append(step)
    assert seen == [
        [("prefill", [(0, 3), (1, 16)])],
        [("decode", [(0, 1)]), ("prefill", [(1, 14)])],
        [("decode", [(0, 1)])],
        [("decode", [(0, 1)])],
    ]
    assert len(short.outputs) == 4 and len(long.outputs) == 1


def test_later_requests_do_not_overtake() -> None:
    """The second prompt waits for memory; the third, which would fit, waits behind it."""
    cache, scheduler = _scheduler(pages=11)
    requests = [_request(0, 16, 4), _request(1, 24, 4), _request(2, 4, 4)]
    for request in requests:
        scheduler.add(request)
    (batch,) = scheduler.schedule()
    assert [r.id for r in batch.requests] == [0]
    assert [r.state for r in requests[1:]] == [RequestState.WAITING] * 2
    cache.check_integrity()


def test_abort_frees_memory_wherever_the_request_is() -> None:
    cache, scheduler = _scheduler(pages=11)
    requests = [_request(0, 16, 4), _request(1, 24, 4)]
    for request in requests:
        scheduler.add(request)
    for batch in scheduler.schedule():
        _run(batch)
    for request in requests:
        scheduler.abort(request)
        assert request.finish is FinishReason.ABORT
    assert not scheduler.has_work
    cache.check_integrity()
    assert cache.pages.num_free == 10 and cache.slots.num_free == 4


@given(
    st.lists(st.tuples(st.integers(1, 60), st.integers(1, 12)), min_size=1, max_size=7),
    st.integers(CHUNK, 40),
    st.integers(1, 4),
)
@settings(max_examples=60, deadline=None)
def test_everything_finishes_in_any_mix(
    shapes: list[tuple[int, int]], budget: int, rows: int
) -> None:
    cache, scheduler = _scheduler(pages=24, slots=4, budget=budget, rows=rows)
    requests = [_request(i, p, n) for i, (p, n) in enumerate(shapes)]
    for request in requests:
        scheduler.add(request)
    started: list[int] = []
    for _ in range(2000):
        if not scheduler.has_work:
            break
        fed = 0
        for batch in scheduler.schedule():
            cache.check_integrity()
            for request, count in zip(batch.requests, batch.num_tokens, strict=True):
                assert request.cache is not None and count > 0
                end = request.cache.context_tokens + count
                if batch.phase == "prefill":
                    fed += count
                    assert end % CHUNK == 0 or end == len(request.prompt)
                    if request.cache.context_tokens == 0:
                        started.append(request.id)
                else:
                    assert len(batch.requests) <= rows and count == 1
            _run(batch)
        assert fed <= budget
        scheduler.retire()
    assert [len(r.outputs) for r in requests] == [n for _, n in shapes]
    assert started == sorted(started), "first come, first served"
    cache.check_integrity()
    assert cache.pages.num_free == 23 and cache.slots.num_free == 3
