"""The engine on one arena: more requests on the same bytes, and compaction that moves live state."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from k3compiler.runtime.engine import Engine, Media, SamplingParams
from k3compiler.runtime.request import Request
from tests.e2e.models import Model, Models

pytestmark = [pytest.mark.t1, pytest.mark.slow]

Make = Callable[..., Engine]


@pytest.fixture(scope="module")
def nano(models: Models) -> Model:
    return models.nano()


@pytest.fixture
def make(nano: Model) -> Iterator[Make]:
    """Engines with poisoned memory; closed at the end."""
    made: list[Engine] = []

    def engine(**options: Any) -> Engine:
        base: dict[str, Any] = {
            "max_context": 512,
            "max_sequences": 4,
            "prefill_tokens": 256,
            "num_threads": 2,
            "poison": options.get("device") != "null",
        }
        weights = None if options.get("device") == "null" else nano.checkpoint
        made.append(Engine(nano.package, weights, **(base | options)))
        return made[-1]

    yield engine
    for one in made:
        one.close()


def submit(engine: Engine, prompt: list[int], max_tokens: int) -> Request:
    request = engine._request(prompt, SamplingParams(max_tokens=max_tokens, ignore_eos=True))
    engine._submit(request)
    return request


def run_to_end(engine: Engine, requests: list[Request]) -> int:
    """Steps until all have finished; the most that ran at once."""
    most = 0
    while any(request.finish is None for request in requests):
        engine.step()
        most = max(most, engine.scheduler.num_running)
    return most


def places(engine: Engine, request: Request) -> tuple[int, list[int]]:
    """Where a running request's slot and pages lie in the arena."""
    rows, arena = engine.cache.hybrid.rows, engine.cache.hybrid.arena
    row = engine._live[str(request.id)].job.row
    return int(arena.slots.place[rows.slot[row]]), arena.pages.place[rows.pages(row)].tolist()


def assert_empty(engine: Engine) -> None:
    engine.cache.check_integrity()
    engine.cache.reset_prefixes()
    use = engine.cache.use
    assert (use.kv, use.state, engine.metrics()["cache_usage_perc"]) == (0, 0, 0)


def test_compaction_moves_what_is_running(nano: Model, make: Make) -> None:
    """A request decodes while its slot, and later one of its pages, is moved: the same tokens."""
    tokens = nano.tokens
    short, long = [tokens[0:30], tokens[30:60]], tokens[100:150]
    wide, late = tokens[150:500], [tokens[60:80], tokens[80:100]]
    plain = make(memory="static", prefix_cache=False)
    layout = plain.cache.memory.map.layout
    engine = make(cache_bytes=3 * layout.slot_bytes + 6 * layout.page_bytes, prefix_cache=False)

    first = [submit(engine, prompt, 3) for prompt in short]
    moved = submit(engine, long, 60)
    run_to_end(engine, first)
    slot, _ = places(engine, moved)
    third = submit(engine, wide, 20)
    run_to_end(engine, [third])
    new_slot, pages = places(engine, moved)
    assert new_slot < slot, "the slots made room for pages"
    last = [submit(engine, prompt, 20) for prompt in late]
    engine.step()
    assert max(places(engine, moved)[1]) < max(pages), "the pages made room for slots"
    assert engine.metrics()["cache_moved_items_total"] == 2
    run_to_end(engine, [moved, *last])

    requests = [*first, moved, third, *last]
    for request in requests:
        params = SamplingParams(max_tokens=len(request.outputs), ignore_eos=True)
        (alone,) = plain.generate(list(request.prompt), params)
        assert alone.tokens == tuple(request.outputs)
    assert plain.metrics()["cache_moved_items_total"] == 0
    assert_empty(engine)


@pytest.mark.parametrize(
    ("length", "num_slots", "num_pages", "fewest"), [(40, 9, 65, 15), (200, 9, 13, 5)]
)
def test_one_arena_admits_more_on_the_same_bytes(
    nano: Model, make: Make, length: int, num_slots: int, num_pages: int, fewest: int
) -> None:
    """Short requests want slots, long ones pages; a split has too few of either."""
    prompts = [nano.tokens[i : i + length] for i in range(24)]
    running: dict[str, int] = {}
    capacity: set[int] = set()
    for memory in ("static", "unified"):
        engine = make(
            device="null", memory=memory, num_slots=num_slots, num_pages=num_pages, max_sequences=24
        )
        running[memory] = run_to_end(engine, [submit(engine, prompt, 8) for prompt in prompts])
        capacity.add(engine.metrics()["cache_capacity_bytes"])
        assert_empty(engine)
    assert len(capacity) == 1, "the same bytes"
    assert running["unified"] >= max(fewest, 1.8 * running["static"])


def test_a_crowd_in_little_memory(nano: Model, make: Make) -> None:
    """Forty-eight requests, twelve of them aborted, through an arena of a few slots and pages."""
    rng = np.random.default_rng(7)
    plain = make()
    layout = plain.cache.memory.map.layout
    engine = make(cache_bytes=4 * layout.slot_bytes, max_sequences=8)
    system = nano.tokens[:70]
    sizes = rng.integers(1, 110, 48)
    prompts = [[*system[: 70 * (i % 2)], *nano.tokens[i : i + int(n)]] for i, n in enumerate(sizes)]
    requests = [submit(engine, prompt, 2 + i % 3) for i, prompt in enumerate(prompts)]
    for index in range(0, 48, 12):
        engine.step()
        engine._abort(requests[index : index + 3])
        engine.cache.check_integrity()
    run_to_end(engine, requests)
    counts = engine.metrics()
    assert counts["request_success_total"] + counts["request_aborted_total"] == 48
    assert counts["cache_moved_items_total"] > 0
    for index in (7, 31, 47):
        params = SamplingParams(max_tokens=2 + index % 3, ignore_eos=True)
        (alone,) = plain.generate(prompts[index], params)
        assert alone.tokens == tuple(requests[index].outputs)
    assert_empty(engine)


def test_adapters_and_media_keep_prefixes_apart(nano: Model, make: Make) -> None:
    engine, prompt = make(), nano.tokens[:200]
    params = SamplingParams(max_tokens=1, ignore_eos=True)
    cat, dog = [Media("cat", 70, 90)], [Media("dog", 70, 90)]
    hits: list[int] = []
    for adapter, media in [
        (None, []), ("poet", []), ("poet", []), (None, cat), (None, dog), (None, cat), (None, [])
    ]:  # fmt: skip
        (done,) = engine.generate([prompt], params, adapter=adapter, media=[media])
        hits.append(done.num_cached_tokens)
    assert hits == [0, 0, 192, 64, 64, 192, 192], "64: the unit before the media"
    assert_empty(engine)
