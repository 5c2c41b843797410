"""The host's twin of the sampling kernels draws from the distribution that its rules describe."""

from __future__ import annotations

import numpy as np
import pytest

from k3compiler.runtime.sampler import gumbel, sample
from k3compiler.runtime.step import SamplerRow

LOGITS = np.array([2.0, 1.0, 0.5, -0.5, 1.0, -3.0], np.float32)
DRAWS = 4000


def _frequencies(temperature: float, top_k: int, top_p: float, *, vary: str) -> np.ndarray:
    counts = np.zeros(len(LOGITS))
    for i in range(DRAWS):
        seed, step = (i, 7) if vary == "seed" else (7, i)
        counts[sample(LOGITS, SamplerRow(temperature, top_k, top_p, seed, step))] += 1
    return counts / DRAWS


def _softmax(z: np.ndarray) -> np.ndarray:
    e = np.exp(z - z.max())
    return e / e.sum()


@pytest.mark.parametrize("vary", ["seed", "step"])
def test_draws_follow_the_softmax(vary: str) -> None:
    want = _softmax(LOGITS / 0.8)
    assert np.abs(_frequencies(0.8, 0, 1.0, vary=vary) - want).max() < 0.03


def test_top_k_keeps_ties_at_the_border() -> None:
    want = _softmax(np.where(LOGITS >= 1.0, LOGITS, -np.inf))
    assert np.abs(_frequencies(1.0, 2, 1.0, vary="seed") - want).max() < 0.03


def test_top_p_keeps_the_token_that_crosses_it() -> None:
    held = np.sort(_softmax(LOGITS))[::-1].cumsum()
    got = _frequencies(1.0, 0, float(held[2]) + 0.01, vary="seed")
    assert set(np.flatnonzero(got)) == {0, 1, 2, 4}


def test_neighbouring_streams_are_unrelated() -> None:
    noise = np.stack([gumbel(seed, step, 4096) for seed in (0, 1) for step in (0, 1)])
    assert np.abs(np.corrcoef(noise) - np.eye(4)).max() < 0.06
    assert abs(noise.mean() - np.euler_gamma) < 0.03


@pytest.mark.parametrize("row", [SamplerRow(), SamplerRow(1e-320, seed=1), SamplerRow(1, 1)])
def test_the_largest_logit_wins(row: SamplerRow) -> None:
    """Greedy, a temperature too small for a quotient, one token left; the lowest index among equals."""
    assert sample(np.array([1.0, 3.0, 2.0], np.float32), row) == 1
    assert row.temperature or sample(np.array([1.0, 3.0, 3.0], np.float32), row) == 1
