"""What is reused: ends of prompts, junctions, generations, salts, media, tiers."""

from __future__ import annotations

from typing import Any

import pytest

from tests.runtime.simulate.runs import Run, part, request

UNIT = PAGE = 64
CONFIG: dict[str, Any] = {"arena_bytes": 8 * 2**30}
NO_SPARE = {"retention": {"spare": False}}


@pytest.mark.parametrize("page", [16, 64, 96, 1536])
@pytest.mark.parametrize(
    "size", [1, 2, 63, 64, 65, 127, 128, 129, 1535, 1536, 1537, 8191, 8192, 8193]
)
def test_a_repeat_reuses_all_but_the_last_unit(size: int, page: int) -> None:
    config = CONFIG | {"page_tokens": page}
    again = [request(str(i), part("s", size), arrival_step=100 * i) for i in range(3)]
    run = Run(config, again)
    assert run.hit("0") == 0
    assert run.hit("1") == run.hit("2") == (size - 1) // UNIT * UNIT


@pytest.mark.parametrize("unit", [64, 128, 256])
@pytest.mark.parametrize("generated", [1, 2, 63, 64, 65, 200])
def test_the_next_turn_starts_where_the_generation_ended(unit: int, generated: int) -> None:
    first = request("a", part("s", 300), max_tokens=generated)
    turn = request("b", part("t", 50), continue_of="a")
    run = Run(CONFIG | NO_SPARE | {"match_unit_tokens": unit}, [first, turn])
    assert run.hit("b") == (300 + generated - 1) // unit * unit


def test_generation_end_can_be_left_out() -> None:
    retention = {"retention": {"spare": False, "generation_end": False}}
    first = request("a", part("s", 300), max_tokens=200)
    run = Run(CONFIG | retention, [first, request("b", part("t", 50), continue_of="a")])
    assert run.hit("b") == 256
    (admitted,) = run.of("admitted", "b")
    assert admitted["mla_hit_tokens"] == 448, "the cells reach further than the state"


def test_the_second_request_leaves_a_state_at_the_junction() -> None:
    """Cells agree for 1,000 tokens; the first kept states only near its end."""
    users = [
        request(n, part("system", 1000), part(n, 900), arrival_step=100 * i)
        for i, n in enumerate("abc")
    ]
    run = Run(CONFIG | NO_SPARE, users)
    assert [run.hit(n) for n in "abc"] == [0, 0, 960]
    (second,) = run.of("admitted", "b")
    assert (second["mla_hit_tokens"], second["state_hit_tokens"]) == (960, 0)
    reasons = {(e["tokens"], e["reason"]) for e in run.of("checkpoint", "b")}
    assert (960, "junction") in reasons
    without = Run(CONFIG | {"retention": {"spare": False, "second_hit": False}}, users)
    assert [without.hit(n) for n in "abc"] == [0, 0, 0]


def test_at_the_same_time_even_the_second_profits() -> None:
    """They wait for the first to pass the junction instead of computing it, too."""
    users = [request(str(i), part("system", 5000), part(f"u{i}", 100)) for i in range(50)]
    run = Run(CONFIG | NO_SPARE | {"max_batched_tokens": 512}, users)
    assert [run.hit(str(i)) for i in range(50)] == [0] + [4992] * 49


def test_spare_states_serve_whoever_leaves_earlier() -> None:
    first, second = request("a", part("s", 4000)), request("b", part("s", 3000), part("t", 10))
    later = second | {"arrival_step": 100}
    assert Run(CONFIG | NO_SPARE, [first, later]).hit("b") == 0
    hit = Run(CONFIG, [first, later]).hit("b")
    assert hit == 3968 - 1024, "log-spaced: at most as far back again as from the end"


def test_states_at_an_interval() -> None:
    config = CONFIG | {"retention": {"spare": False, "interval_tokens": 512}}
    first, second = request("a", part("s", 4000)), request("b", part("s", 3000), arrival_step=100)
    run = Run(config, [first, second])
    assert run.hit("b") == 2560
    assert {e["tokens"] for e in run.of("checkpoint", "a")} == {*range(512, 4000, 512), 3968}


@pytest.mark.parametrize("field", ["salt", "adapter"])
def test_other_salts_and_adapters_share_nothing(field: str) -> None:
    lines = [
        request(str(i), part("s", 1000), arrival_step=100 * i) | extra
        for i, extra in enumerate([{}, {field: "x"}, {field: "y"}, {field: "x"}, {}])
    ]
    run = Run(CONFIG, lines)
    assert [run.hit(str(i)) for i in range(5)] == [0, 0, 0, 960, 960]


def test_media_are_part_of_the_prefix() -> None:
    def media(name: str, start: int) -> list[dict[str, Any]]:
        return [{"id": name, "start": start, "stop": start + 100}]

    lines = [
        request(str(i), part("s", 1000), arrival_step=100 * i, media=m)
        for i, m in enumerate([media("m", 300), media("n", 300), media("m", 301), media("m", 300)])
    ]
    run = Run(CONFIG | {"retention": {"spare": False, "interval_tokens": 64}}, lines)
    assert [run.hit(str(i)) for i in range(4)] == [0, 256, 256, 960]


def test_reading_can_be_declined_and_the_cache_left_out() -> None:
    lines = [request("a", part("s", 500))]
    lines += [request("b", part("s", 500), arrival_step=100, no_cache_read=True)]
    lines += [request("c", part("s", 500), arrival_step=200)]
    run = Run(CONFIG, lines)
    assert (run.hit("b"), run.hit("c")) == (0, 448)
    run = Run(CONFIG | {"prefix_cache": False}, lines)
    assert run.summary["reused_tokens"] == 0 and not run.of("checkpoint")


def test_the_lower_tier_gives_the_longer_hit() -> None:
    """Memory for one prompt: the first is spilled by the second, and comes back for the third."""
    one = 56_171_520 + 64 * 27_648 * 20
    lines = [
        request(str(i), part(s, 1000), arrival_step=100 * i) for i, s in enumerate(["a", "b", "a"])
    ]
    run = Run({"arena_bytes": 2 * one, "host_bytes": 2**30} | NO_SPARE, lines)
    (third,) = run.of("admitted", "2")
    assert (third["hit_tokens"], third["tier"]) == (960, "host")
    assert Run({"arena_bytes": 2 * one} | NO_SPARE, lines).hit("2") == 0


def test_what_cannot_be_kept_twice_is_taken_over() -> None:
    """One slot in all: the repeat takes the checkpoint's own slot rather than nothing."""
    config = {"arena_bytes": 56_171_520 + 64 * 27_648 * 17, "max_seqs": 2} | NO_SPARE
    lines = [request("a", part("s", 1024), max_tokens=1)]
    lines += [request("b", part("s", 1024), part("t", 3), arrival_step=100, max_tokens=1)]
    run = Run(config, lines)
    assert run.hit("b") == 1024 and not run.of("copy")
