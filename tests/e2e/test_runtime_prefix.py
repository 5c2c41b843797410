"""The nano model on the CPU: alone, in a crowd, after hits, preempted and resumed: the same tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from k3compiler.runtime.engine import Engine
from k3compiler.runtime.sampling import SamplingParams
from tests.e2e.models import Make, Model

pytestmark = [pytest.mark.t1, pytest.mark.slow]

GREEDY = SamplingParams(max_tokens=8, ignore_eos=True)


def assert_idle(engine: Engine) -> None:
    """Nothing runs, nothing leaks, and an emptied cache holds nothing."""
    engine.cache.check_integrity()
    assert not engine.scheduler.has_work
    assert engine.cache.pages.num_free == engine.cache.pages.num_usable
    engine.cache.reset_prefixes()
    arena = engine.cache.hybrid.arena
    assert (arena.pages.num_live, arena.slots.num_live) == (0, 0)


def last_logits(engine: Engine, prompt: list[int]) -> tuple[NDArray[np.float32], int]:
    """Logits after a prompt as the scheduler runs it, and how much of it was cached."""
    rows: list[NDArray[np.float32]] = []
    prefill = engine.executor.prefill

    def recording(chunks: Any, *, want_logits: bool = False) -> Any:
        output = prefill(chunks, want_logits=True)
        if output.logits is not None:
            rows.append(output.logits[-1])
        return output

    engine.executor.prefill = recording  # type: ignore[method-assign]
    try:
        (done,) = engine.generate(prompt, SamplingParams(max_tokens=1, ignore_eos=True))
    finally:
        engine.executor.prefill = prefill  # type: ignore[method-assign]
    return rows[-1], done.num_cached_tokens


@pytest.mark.parametrize("budget", [64, 128, 512])
def test_a_hit_changes_no_bit(nano: Model, make: Make, budget: int) -> None:
    """Cold, repeated, longer and shorter prompts, whatever the chunks: the bits of one prefill."""
    engine, tokens = make(prefill_tokens=budget), nano.tokens
    for length, cached in [(300, 0), (300, 256), (320, 256), (320, 256), (256, 192), (449, 320)]:
        whole = engine.logits(tokens[:length])[-1]
        found, hit = last_logits(engine, tokens[:length])
        assert hit == cached, "the hit is the last kept state"
        assert np.array_equal(found, whole)
    assert engine.metrics()["prefix_cache_hits_total"] > 0
    assert_idle(engine)


def test_a_checkpoint_splits_no_prefill(nano: Model, make: Make) -> None:
    """One launch for a prompt that leaves states inside it and one at its end."""
    engine, taken = make(prefill_tokens=512), list[list[int]]()
    prefill = engine.executor.prefill

    def recording(chunks: Any, *, want_logits: bool = False) -> Any:
        taken.append(sorted(chunks[0].checkpoints))
        return prefill(chunks, want_logits=want_logits)

    engine.executor.prefill = recording  # type: ignore[method-assign]
    prompt = nano.tokens[:384]
    engine.generate(prompt, GREEDY)
    assert len(taken) == 1 and len(taken[0]) > 2 and max(taken[0]) == 384
    (warm,) = engine.generate([*prompt[:200], *nano.tokens[400:420]], GREEDY)
    assert warm.num_cached_tokens == max(p for p in taken[0] if p <= 200) and len(taken) == 2


def test_a_second_turn_starts_from_the_generated_state(nano: Model, make: Make) -> None:
    engine = make()
    prompt = nano.tokens[:100]
    (first,) = engine.generate(prompt, SamplingParams(max_tokens=40, ignore_eos=True))
    turn = [*prompt, *first.tokens, *nano.tokens[200:230]]
    whole = engine.logits(turn)[-1]
    found, hit = last_logits(engine, turn)
    assert hit == 128, "a state that decoding passed"
    assert 0 < np.abs(found - whole).max() <= 1e-4, "decoded: other sums, the same numbers"
    assert_idle(engine)


def test_alone_in_a_crowd_and_without_a_cache(nano: Model, make: Make) -> None:
    tokens = nano.tokens
    prompts = [tokens[:n] for n in (1, 63, 64, 65, 130, 200, 257)] + [tokens[50:200]]
    plain = make(prefix_cache=False)
    alone = [plain.generate(prompt, GREEDY)[0].tokens for prompt in prompts]
    assert all(done.num_cached_tokens == 0 for done in plain.generate(prompts, GREEDY))
    for budget in (64, 256):
        engine = make(prefill_tokens=budget)
        assert [done.tokens for done in engine.generate(prompts, GREEDY)] == alone
        found = engine.generate(prompts, GREEDY)
        assert [done.tokens for done in found] == alone, "from the cache"
        assert sum(done.num_cached_tokens for done in found) > 0
        assert_idle(engine)


def test_preempted_and_resumed(nano: Model, make: Make) -> None:
    """Pages for two and a half sequences, four of which grow at once."""
    prompts = [nano.tokens[i : i + 60] for i in range(0, 200, 50)]
    params = SamplingParams(max_tokens=100, ignore_eos=True)
    roomy = make()
    expected = [done.tokens for done in roomy.generate(prompts, params)]
    assert roomy.metrics()["num_preemptions_total"] == 0
    engine = make(num_pages=8, memory="static")
    assert [done.tokens for done in engine.generate(prompts, params)] == expected
    assert engine.metrics()["num_preemptions_total"] > 0
    assert_idle(engine)


def test_prefixes_come_back_from_host_memory(nano: Model, make: Make) -> None:
    """Room for one long prompt: the second pushes the first out, to the host and not away."""
    first, second = nano.tokens[:450], nano.tokens[20:470]
    engine = make(num_pages=9, max_sequences=2, memory="static", host_bytes=2**26)
    whole = engine.logits(first)[-1]
    for prompt, cached in [(first, 0), (second, 0), (first, 448), (second, 448)]:
        found, hit = last_logits(engine, prompt)
        assert hit == cached
        if prompt is first:
            assert np.array_equal(found, whole)
        engine.cache.check_integrity()
    lost = make(num_pages=9, max_sequences=2, memory="static")
    assert [last_logits(lost, p)[1] for p in (first, second, first)] == [0, 0, 0]
    assert_idle(engine)


def test_salts_keep_requests_apart(nano: Model, make: Make) -> None:
    engine, prompt = make(), nano.tokens[:200]
    hits = [
        engine.generate(prompt, GREEDY, salt=salt)[0].num_cached_tokens
        for salt in (None, "a", "a", "b", None)
    ]
    assert hits == [0, 0, 192, 0, 192]
    assert_idle(engine)


def test_two_hundred_requests_finish(nano: Model, make: Make) -> None:
    rng = np.random.default_rng(5)
    system = nano.tokens[:130]
    prompts = [
        [*system, *rng.integers(0, nano.vocab_size, int(n))] for n in rng.integers(1, 30, 200)
    ]
    engine = make(max_sequences=32)
    found = engine.generate(
        [[int(t) for t in prompt] for prompt in prompts],
        SamplingParams(max_tokens=3, ignore_eos=True),
    )
    assert [len(done.tokens) for done in found] == [3] * 200
    counts = engine.metrics()
    assert counts["request_success_total"] == 200 and counts["num_requests_running"] == 0
    assert counts["prefix_cache_hit_rate"] > 0.7, "the system prompt is computed once"
    assert counts["time_to_first_token_seconds"]["count"] == 200
    assert_idle(engine)


def test_an_abort_storm_leaks_nothing(nano: Model, make: Make) -> None:
    rng = np.random.default_rng(6)
    engine = make(num_pages=20)
    for turn in range(25):
        lengths = rng.integers(1, 150, 5)
        prompts = [nano.tokens[turn : turn + int(n)] for n in lengths]
        stream = engine.stream(prompts, SamplingParams(max_tokens=30, ignore_eos=True))
        for _ in range(int(rng.integers(1, 12))):
            next(stream)
        stream.close()  # type: ignore[attr-defined]
        engine.cache.check_integrity()
        assert not engine.scheduler.has_work
    assert engine.metrics()["request_aborted_total"] > 50
    assert_idle(engine)


def test_a_step_that_fails_publishes_nothing(
    nano: Model, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make()
    prompt = nano.tokens[:200]
    expected = engine.logits(prompt)[-1]
    with monkeypatch.context() as patch:
        patch.setattr(engine.executor, "prefill", lambda *a, **k: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            engine.generate(prompt, GREEDY)
    engine.cache.check_integrity()
    found, hit = last_logits(engine, prompt)
    assert hit == 0 and np.array_equal(found, expected)
    assert_idle(engine)
