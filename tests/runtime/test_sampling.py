"""Sampling: the generator's known answers, the filters, and the distribution."""

from __future__ import annotations

import numpy as np
import pytest

from k3compiler.errors import K3Error
from k3compiler.runtime.sampling import (
    SamplingParams,
    filtered,
    philox4x32,
    philox_uniform,
    sample,
)

LOGITS = np.log(np.array([0.05, 0.4, 0.1, 0.4, 0.05], np.float32))


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        (
            (0xFFFFFFFF,) * 4,
            (0xFFFFFFFF,) * 2,
            (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
        ),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_known_answers(
    counter: tuple[int, int, int, int], key: tuple[int, int], words: tuple[int, int, int, int]
) -> None:
    assert philox4x32(counter, key) == words


def test_uniform_is_a_function_of_seed_and_step() -> None:
    draws = [philox_uniform(seed, step) for seed in range(20) for step in range(50)]
    assert len(set(draws)) == 1000
    assert min(draws) >= 0 and max(draws) < 1
    assert abs(np.mean(draws) - 0.5) < 0.03
    assert draws[60] == philox_uniform(1, 10)


def test_greedy_takes_the_lowest_index_among_equals() -> None:
    assert sample(LOGITS, SamplingParams(), seed=0, step=0) == 1


@pytest.mark.parametrize(
    ("params", "kept"),
    [
        (SamplingParams(temperature=1), [0, 1, 2, 3, 4]),
        (SamplingParams(temperature=1, top_k=2), [1, 3]),
        (SamplingParams(temperature=1, top_k=4), [1, 3, 2, 0]),
        (SamplingParams(temperature=1, top_k=99), [1, 3, 2, 0, 4]),
        (SamplingParams(temperature=1, top_p=0.3), [1]),
        (SamplingParams(temperature=1, top_p=0.79), [1, 3]),
        (SamplingParams(temperature=1, top_p=0.85), [1, 3, 2]),
        (SamplingParams(temperature=1, top_k=2, top_p=0.45), [1]),
    ],
)
def test_filters(params: SamplingParams, kept: list[int]) -> None:
    assert filtered(LOGITS, params)[0].tolist() == kept


def test_distribution() -> None:
    params = SamplingParams(temperature=0.5)
    draws = [sample(LOGITS, params, seed=s, step=0) for s in range(4000)]
    want = np.exp(2 * LOGITS.astype(np.float64))
    found = np.bincount(draws, minlength=5) / 4000
    np.testing.assert_allclose(found, want / want.sum(), atol=0.03)


@pytest.mark.parametrize(
    "bad",
    [
        {"max_tokens": 0},
        {"temperature": -1.0},
        {"temperature": float("nan")},
        {"top_k": -1},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"seed": -1},
        {"seed": 2**31},
    ],
)
def test_bad_parameters(bad: dict[str, float]) -> None:
    with pytest.raises(K3Error, match="K3-R004") as caught:
        SamplingParams(**bad)  # type: ignore[arg-type]
    assert caught.value.where == next(iter(bad))


def test_a_temperature_too_small_for_a_quotient_is_greedy() -> None:
    logits = np.array([1.0, 3.0, 2.0], np.float32)
    assert sample(logits, SamplingParams(temperature=1e-320), seed=1, step=0) == 1
