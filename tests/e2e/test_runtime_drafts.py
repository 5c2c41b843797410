"""Speculation in the engine on the nano model: drafts change the number of steps and nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from k3compiler.runtime.engine import Engine
from k3compiler.runtime.sampling import SamplingParams
from k3compiler.runtime.speculation import LookupDrafter
from tests.e2e.models import Model, Models

pytestmark = [pytest.mark.t1, pytest.mark.slow]

Make = Callable[..., Engine]


class KnownAnswers:
    """Drafts from answers that are known, right except where ``wrong`` says."""

    def __init__(self, texts: Sequence[Sequence[int]], wrong: Callable[[int], bool]) -> None:
        self._texts, self._wrong = texts, wrong
        self.asked = 0

    def propose(self, tokens: Sequence[int], most: int) -> list[int]:
        self.asked += 1
        known = list(tokens)
        text = next(t for t in self._texts if list(t[: len(known)]) == known)
        drafts = list(text[len(known) : len(known) + most])
        return [1 if self._wrong(len(known) + i) else d for i, d in enumerate(drafts)]


@pytest.fixture(scope="module")
def nano(models: Models) -> Model:
    return models.nano()


@pytest.fixture
def make(nano: Model) -> Iterator[Make]:
    made: list[Engine] = []

    def engine(**options: Any) -> Engine:
        base: dict[str, Any] = {
            "max_context": 256,
            "max_sequences": 3,
            "prefill_tokens": 128,
            "num_threads": 2,
        }
        made.append(Engine(nano.package, nano.checkpoint, poison=True, **(base | options)))
        return made[-1]

    yield engine
    for one in made:
        one.close()


@pytest.mark.parametrize("every", [0, 1, 3, 5])
def test_greedy_output_is_the_same_with_drafts(nano: Model, make: Make, every: int) -> None:
    """All right, all wrong, or every third or fifth wrong; rollback across a unit boundary."""
    prompts = [nano.tokens[:50], nano.tokens[100:163], nano.tokens[200:201]]
    params = SamplingParams(max_tokens=40, ignore_eos=True)
    plain = make()
    expected = [done.tokens for done in plain.generate(prompts, params)]
    texts = [[*p, *e] for p, e in zip(prompts, expected, strict=True)]
    drafter = KnownAnswers(texts, lambda i: every > 0 and i % every == 0)
    engine = make(drafter=drafter, draft_tokens=6)
    assert [done.tokens for done in engine.generate(prompts, params)] == expected
    counts = engine.metrics()
    accepted = counts["spec_decode_num_accepted_tokens_total"]
    if every == 0:
        assert accepted == counts["spec_decode_num_draft_tokens_total"] > 90
        assert drafter.asked < 3 * 40 / 5
    if every == 1:
        assert accepted <= 3, "no draft is right (but by chance)"
    engine.cache.check_integrity()


def test_the_next_turn_starts_from_a_state_that_a_verify_passed(nano: Model, make: Make) -> None:
    prompt, params = nano.tokens[:50], SamplingParams(max_tokens=40, ignore_eos=True)
    expected = make().generate(prompt, params)[0].tokens
    drafter = KnownAnswers([[*prompt, *expected]], lambda i: i % 4 == 0)
    engine = make(drafter=drafter, draft_tokens=6)
    assert engine.generate(prompt, params)[0].tokens == expected
    turn = [*prompt, *expected, *nano.tokens[150:160]]
    reference = make(prefix_cache=False).generate(turn, SamplingParams(max_tokens=1))[0]
    engine._runner._drafter = LookupDrafter()
    (found,) = engine.generate(turn, SamplingParams(max_tokens=1))
    assert found.num_cached_tokens == 64 and found.tokens == reference.tokens


def test_sampled_output_is_the_same_with_drafts(nano: Model, make: Make) -> None:
    """The same random numbers at the same positions: not only the distribution is unchanged."""
    prompt = nano.tokens[:30]
    plain, engine = make(), make(drafter=LookupDrafter(longest=2, shortest=1), draft_tokens=3)
    for seed in range(4):
        params = SamplingParams(max_tokens=25, temperature=0.9, top_p=0.95, seed=seed)
        assert engine.generate(prompt, params)[0].tokens == plain.generate(prompt, params)[0].tokens
    assert engine.metrics()["spec_decode_num_draft_tokens_total"] > 0


def test_sampled_output_has_the_right_distribution(nano: Model, make: Make) -> None:
    """Chi-square of both tokens against their probabilities; the draft is always the same token."""
    prompt, runs = nano.tokens[:20], 250
    plain = make()
    logits = plain.logits(prompt)[-1].astype(np.float64) / 0.7
    first = int(logits.argmax())

    class Likeliest:
        def propose(self, tokens: Sequence[int], most: int) -> list[int]:
            return [first][:most]

    engine = make(drafter=Likeliest(), draft_tokens=2)
    pairs = Counter[tuple[int, ...]]()
    for start in range(0, runs, 50):
        params = [
            SamplingParams(max_tokens=2, temperature=0.7, top_k=4, seed=seed, ignore_eos=True)
            for seed in range(start, start + 50)
        ]
        pairs.update(done.tokens for done in engine.generate([prompt] * 50, params))
    statistic = degrees = 0.0
    kept = np.argsort(-logits)[:4]
    expected = np.exp(logits[kept] - logits[kept].max())
    for token, share in zip(kept.tolist(), expected / expected.sum(), strict=True):
        mine = sum(n for pair, n in pairs.items() if pair[0] == token)
        statistic += (mine - runs * share) ** 2 / (runs * share)
        degrees += 1
        after = plain.logits([*prompt, token])[-1].astype(np.float64) / 0.7
        top = np.argsort(-after)[:4]
        shares = np.exp(after[top] - after[top].max())
        for follower, chance in zip(top.tolist(), shares / shares.sum(), strict=True):
            if mine * chance >= 5:
                statistic += (pairs[token, follower] - mine * chance) ** 2 / (mine * chance)
                degrees += 1
    assert statistic < degrees + 4 * np.sqrt(2 * degrees), f"{statistic:.1f} over {degrees} cells"


def test_lookup_drafts_follow_the_last_occurrence() -> None:
    drafter = LookupDrafter(longest=3, shortest=2)
    assert drafter.propose([1, 2, 3, 4, 5, 1, 2, 3, 9, 8, 1, 2, 3], 3) == [9, 8, 1]
    assert drafter.propose([7, 2, 3, 4, 5, 6, 2, 3], 9) == [4, 5, 6, 2, 3]
    assert drafter.propose([1, 2, 3], 4) == [] and drafter.propose([5], 4) == []
