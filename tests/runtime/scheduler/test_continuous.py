"""The scheduler: budget, grid, fairness, priorities, promises, preemption, refusals."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import pytest

from tests.runtime.simulate.runs import Run, part, request

STATE, TOKEN = 1000, 10
CONFIG: dict[str, Any] = {
    "arena_bytes": 10**6,
    "state_bytes": STATE,
    "mla_token_bytes": TOKEN,
    "page_tokens": 8,
    "match_unit_tokens": 8,
    "chunk_tokens": 4,
    "max_batched_tokens": 64,
    "max_seqs": 8,
}


def test_steps_keep_the_budget_and_chunks_the_grid() -> None:
    sizes = [3, 300, 17, 64, 65, 128, 7, 4]
    run = Run(
        CONFIG, [request(str(i), part(f"s{i}", n), max_tokens=9) for i, n in enumerate(sizes)]
    )
    fed = Counter[int]()
    for event in run.of("chunk"):
        fed[event["step"]] += event["tokens"]
    assert max(fed.values()) <= 64
    for index, size in enumerate(sizes):
        chunks = [e for e in run.of("chunk", str(index)) if e["start"] < size]
        assert [e["start"] % 4 for e in chunks] == [0] * len(chunks)
        for one, following in pairwise(chunks):
            assert one["start"] + one["tokens"] == following["start"]
        assert chunks[-1]["start"] + chunks[-1]["tokens"] == size


def test_a_long_prompt_does_not_keep_short_ones_waiting() -> None:
    lines = [request("long", part("l", 6000))]
    lines += [request(f"short{i}", part(f"s{i}", 8), arrival_step=2 + i) for i in range(5)]
    run = Run(CONFIG, lines, deep=False)
    for index in range(5):
        assert run.finish_step(f"short{index}") - (2 + index) <= 3
    assert run.finish_step("long") > 90


def test_decodes_and_prompts_share_a_budget_that_is_too_small_for_both() -> None:
    """Eight decodes leave less than a chunk of ten tokens: neither starves."""
    config = CONFIG | {"max_batched_tokens": 10, "max_seqs": 9}
    lines = [request(str(i), part(f"s{i}", 4), max_tokens=60) for i in range(8)]
    lines += [request("late", part("l", 40), arrival_step=10)]
    run = Run(config, lines)
    assert run.finish_step("late") < 60
    assert max(run.finish_step(str(i)) for i in range(8)) < 110


def test_lower_numbers_run_first_and_then_order_of_arrival() -> None:
    config = CONFIG | {"max_seqs": 1}
    lines = [
        request(n, part(n, 10), priority=p) for n, p in [("a", 1), ("b", 0), ("c", 1), ("d", -1)]
    ]
    run = Run(config, lines)
    assert [e["id"] for e in run.of("admitted")] == ["d", "b", "a", "c"]


def test_no_request_is_admitted_into_memory_that_is_promised() -> None:
    """Room for two prompts of 400 tokens: the third waits, nobody is preempted."""
    config = CONFIG | {"arena_bytes": 2 * (STATE + 424 * TOKEN) + STATE}
    run = Run(config, [request(n, part(n, 400), max_tokens=3) for n in "abc"])
    assert run.summary["num_preempted"] == 0 and run.summary["max_running"] == 2
    assert run.of("admitted", "c")[0]["step"] > min(run.finish_step("a"), run.finish_step("b")) - 1


@pytest.mark.parametrize("host_bytes", [0, 10**5])
def test_everything_preempts_and_everything_finishes(host_bytes: int) -> None:
    config = CONFIG | {"arena_bytes": STATE + 230 * TOKEN + STATE, "host_bytes": host_bytes}
    run = Run(config, [request(str(i), part(f"s{i}", 30), max_tokens=170) for i in range(6)])
    assert run.summary["num_preempted"] > 5
    assert run.summary["num_resumed"] == run.summary["num_preempted"]
    assert run.summary["num_finished"] == 6
    if host_bytes:
        assert run.summary["num_restored"] > 0, "swapped, not recomputed"


def test_the_worst_rank_is_preempted() -> None:
    config = CONFIG | {"arena_bytes": 2 * STATE + 300 * TOKEN, "retention": {"prompt_end": False}}
    lines = [request("low", part("l", 40), max_tokens=150, priority=5)]
    lines += [request("high", part("h", 40), max_tokens=150, priority=0, arrival_step=3)]
    run = Run(config, lines)
    assert {e["id"] for e in run.of("preempted")} == {"low"}
    assert run.finish_step("high") < run.finish_step("low")


def test_what_can_never_fit_is_refused_at_once_with_the_numbers() -> None:
    lines = [
        request("bytes", part("a", 100), max_tokens=100_000),
        request("model", part("a", 100), max_tokens=2_000_000),
        request("empty"),
        request("fine", part("a", 100), after="bytes"),
    ]
    run = Run(CONFIG, lines)
    codes = {e["id"]: e["code"] for e in run.of("refused")}
    assert codes == {"bytes": "K3-R011", "model": "K3-R003", "empty": "K3-R003"}
    (refused,) = run.of("refused", "bytes")
    pages = -(-(100 + 100_000 - 1) // 8)
    assert refused["need_bytes"] == STATE + pages * 8 * TOKEN
    assert (refused["arena_bytes"], refused["step"]) == (10**6, 0)
    assert run.finish_step("fine") > 0, "whoever waits for a refused one still runs"


def test_what_fits_exactly_alone_runs() -> None:
    config = CONFIG | {"arena_bytes": STATE + 26 * 8 * TOKEN}
    lines = [request(n, part(n, 100), max_tokens=109) for n in "ab"]
    run = Run(config, [*lines, request("c", part("c", 100), max_tokens=110)])
    assert run.summary["num_finished"] == 2 and run.summary["num_refused"] == 1


@pytest.mark.parametrize("abort_step", [0, 1, 3, 6, 12])
def test_abort_at_any_moment(abort_step: int) -> None:
    lines = [request("a", part("a", 200), max_tokens=8, abort_step=abort_step)]
    lines += [
        request("b", part("a", 200), max_tokens=8),
        request("c", part("x", 5), continue_of="a"),
    ]
    run = Run(CONFIG, lines)
    assert run.of("finished", "a")[0]["reason"] == ("abort" if abort_step < 12 else "length")
    assert run.of("finished", "b")[0]["reason"] == "length"
    assert run.of("finished", "c")[0]["reason"] == "length"


def test_the_unified_arena_admits_more() -> None:
    lines = [request(str(i), part(f"s{i}", 4000), max_tokens=2) for i in range(24)]
    sizes = {"arena_bytes": 500_000, "max_batched_tokens": 2**20, "max_seqs": 24}
    running = {
        memory: Run(CONFIG | sizes | {"memory": memory}, lines, deep=False).summary["max_running"]
        for memory in ("unified", "static")
    }
    assert running["unified"] > running["static"] > 0


def test_every_step_does_something() -> None:
    """Decodes leave no room for a chunk, and the prompt that waits finds no memory."""
    config = CONFIG | {"max_batched_tokens": 4, "arena_bytes": 3 * STATE + 200 * TOKEN}
    lines = [request(str(i), part(f"s{i}", 4), max_tokens=40) for i in range(2)]
    lines += [request("big", part("b", 150), arrival_step=3)]
    run = Run(config, lines)
    steps = {e["step"] for e in run.of("chunk")}
    assert steps == set(range(max(steps) + 1))
    speculative = {"width": 4, "accept": [0]}
    assert Run(config | {"speculative": speculative}, lines).summary["num_finished"] == 3
