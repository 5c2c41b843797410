"""Speculation in the engine on the nano model: drafts change the number of steps and nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from k3compiler.runtime.sampling import SamplingParams
from k3compiler.runtime.speculation import Drafter, Known, LookupDrafter
from tests.e2e.models import DRAFT, TEXT, Make, Model

pytestmark = [pytest.mark.t1, pytest.mark.slow]


class KnownAnswers(Drafter):
    """Drafts from answers that are known, right except where ``wrong`` says."""

    def __init__(self, texts: Sequence[Sequence[int]], wrong: Callable[[int], bool]) -> None:
        self._texts, self._wrong = texts, wrong
        self.asked = 0

    def propose(self, known: Sequence[Known], most: Sequence[int]) -> list[list[int]]:
        return [self._answer(list(one.tokens), n) for one, n in zip(known, most, strict=True)]

    def _answer(self, known: list[int], most: int) -> list[int]:
        self.asked += 1
        text = next(t for t in self._texts if list(t[: len(known)]) == known)
        drafts = list(text[len(known) : len(known) + most])
        return [1 if self._wrong(len(known) + i) else d for i, d in enumerate(drafts)]


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


def test_sampled_output_has_the_right_distribution(make: Make) -> None:
    """Chi-square of the second and third token, which a verify chooses, given those before."""
    plain, engine = make(), make(draft=DRAFT, draft_tokens=2, max_sequences=50)
    prompt = plain.tokenizer.encode(TEXT)[:20]
    found: list[tuple[int, ...]] = []
    for start in range(0, 100, 50):
        params = [
            SamplingParams(max_tokens=3, temperature=1.3, top_k=3, seed=seed, ignore_eos=True)
            for seed in range(start, start + 50)
        ]
        found += [done.tokens for done in engine.generate([prompt] * 50, params)]
    counts = engine.metrics()
    assert counts["spec_decode_num_draft_tokens_total"] == 100
    assert 0 < counts["spec_decode_num_accepted_tokens_total"] < 100, "some drafts are right"
    cells = [
        (
            plain.logits([*prompt, *begin])[-1],
            Counter(t[depth] for t in found if t[:depth] == begin),
        )
        for depth in (1, 2)
        for begin in sorted({t[:depth] for t in found})
    ]
    statistic, degrees = chi_square(cells, temperature=1.3, top_k=3)
    assert degrees >= 4
    assert statistic < degrees + 4 * np.sqrt(2 * degrees), f"{statistic:.1f} over {degrees} cells"


def chi_square(
    cells: Iterable[tuple[NDArray[np.float32], Counter[int]]], *, temperature: float, top_k: int
) -> tuple[float, int]:
    """Pearson's sum over choices from logits, and its degrees of freedom; expected counts of 4 on."""
    statistic, degrees = 0.0, 0
    for logits, counts in cells:
        scaled = logits.astype(np.float64) / temperature
        kept = np.argsort(-scaled)[:top_k]
        shares = np.exp(scaled[kept] - scaled[kept].max())
        expected = sum(counts.values()) * shares / shares.sum()
        assert set(counts) <= set(kept.tolist()), "a token outside the top k"
        if expected.min() < 4:
            continue
        mine = np.array([counts[token] for token in kept.tolist()])
        statistic += float(((mine - expected) ** 2 / expected).sum())
        degrees += top_k - 1
    return statistic, degrees


def test_lookup_drafts_follow_the_last_occurrence() -> None:
    drafter = LookupDrafter(longest=3, shortest=2)
    texts = [
        [1, 2, 3, 4, 5, 1, 2, 3, 9, 8, 1, 2, 3],
        [7, 2, 3, 4, 5, 6, 2, 3],
        [1, 2, 3],
        [5],
    ]
    found = drafter.propose([Known(text, []) for text in texts], [3, 9, 4, 4])
    assert found == [[9, 8, 1], [4, 5, 6, 2, 3], [], []]
