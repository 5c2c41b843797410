"""The chunk form against the recurrence: K != V, every gate, ragged ends, segments."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from k3compiler.reference.kda import kda_recurrence
from k3compiler.reference.kda_chunk import (
    chunk_bounds,
    kda_chunked,
    kda_output,
    kda_prepare,
    kda_scan,
    kda_segment_maps,
)
from k3compiler.reference.norms import l2_normalize

HEADS, K_DIM, V_DIM = 3, 24, 20
GATES = {
    "whole range": lambda rng, shape: -5 * rng.random(shape),
    "all at the bound": lambda rng, shape: -5 + 1e-3 * rng.random(shape),
    "long memory": lambda rng, shape: -1e-3 * rng.random(shape),
    "softplus": lambda rng, shape: -8 * np.logaddexp(0, 4 * rng.standard_normal(shape)),
    "forgets at once": lambda rng, shape: np.where(rng.random(shape) < 0.1, -900.0, -0.1),
}


def operands(tokens: int, gates: str = "whole range", seed: int = 0) -> tuple[Any, ...]:
    """q, k, v, g, beta and a nonzero state."""
    rng = np.random.default_rng(seed)
    q = l2_normalize(rng.standard_normal((tokens, HEADS, K_DIM))) * K_DIM**-0.5
    k = l2_normalize(rng.standard_normal((tokens, HEADS, K_DIM)))
    v = rng.standard_normal((tokens, HEADS, V_DIM))
    g = GATES[gates](rng, (tokens, HEADS, K_DIM))
    state = rng.standard_normal((HEADS, V_DIM, K_DIM))
    return q, k, v, g, rng.random((tokens, HEADS)), state


@pytest.mark.parametrize("gates", GATES)
@pytest.mark.parametrize("chunk_tokens", [16, 64])
def test_agrees_with_the_recurrence(gates: str, chunk_tokens: int) -> None:
    x = operands(137, gates)
    o, state = kda_chunked(*x, chunk_tokens=chunk_tokens)
    want_o, want_state = kda_recurrence(*x)
    # sums of logs in the thousands leave fewer digits to the small ones among them
    tolerance = 1e-12 if gates == "forgets at once" else 1e-14
    assert np.abs(o - want_o).max() < tolerance
    assert np.abs(state - want_state).max() < 2 * tolerance


@pytest.mark.parametrize("segment_chunks", [1, 2, 3, 100])
def test_segments_change_nothing(segment_chunks: int) -> None:
    x = operands(150)
    o, state = kda_chunked(*x, chunk_tokens=16, segment_chunks=segment_chunks)
    want_o, want_state = kda_recurrence(*x)
    assert np.allclose(o, want_o, atol=1e-14) and np.allclose(state, want_state, atol=1e-13)


@settings(max_examples=25, deadline=None)
@given(tokens=st.integers(1, 70), first=st.integers(0, 40), seg=st.integers(1, 4))
def test_any_length_position_and_segment(tokens: int, first: int, seg: int) -> None:
    x = operands(tokens, seed=tokens)
    kwargs = {"first_position": first, "chunk_tokens": 16, "segment_chunks": seg}
    o, state = kda_chunked(*x, **kwargs)
    want_o, want_state = kda_recurrence(*x)
    assert np.allclose(o, want_o, atol=1e-13) and np.allclose(state, want_state, atol=1e-13)


def test_keys_that_agree_and_slow_gates() -> None:
    """The inverse has entries far from zero; substitution must not cancel."""
    q, k, v, g, beta, state = operands(128, "long memory")
    k = l2_normalize(k[:1] + 0.3 * k)
    o, end = kda_chunked(q, k, v, g, np.ones_like(beta), state)
    want_o, want_end = kda_recurrence(q, k, v, g, np.ones_like(beta), state)
    assert np.allclose(o, want_o, atol=1e-12) and np.allclose(end, want_end, atol=1e-12)


def test_without_state() -> None:
    x = operands(40)[:5]
    assert np.allclose(
        kda_chunked(*x, state=None)[0], kda_recurrence(*x, state=None)[0], atol=1e-14
    )


def test_later_tokens_do_not_reach_earlier_outputs() -> None:
    x = operands(50)
    longer = kda_chunked(*x, chunk_tokens=16)[0]
    shorter = kda_chunked(*(a[:37] for a in x[:5]), state=x[5], chunk_tokens=16)[0]
    assert np.allclose(longer[:37], shorter, atol=1e-15)


def test_several_sequences_in_one_batch() -> None:
    """Chunks and segments of two sequences side by side; the states after chunks."""
    a, b = operands(70, seed=1), operands(33, seed=2)
    both = [np.concatenate(pair) for pair in zip(a[:5], b[:5], strict=True)]
    starts_a, ends_a = chunk_bounds(70, 0, 16)
    starts_b, ends_b = chunk_bounds(33, 5, 16)
    start, end = np.append(starts_a, starts_b + 70), np.append(ends_a, ends_b + 70)
    seg_chunk, seq_seg = np.array([0, 3, 5, len(start)]), np.array([0, 2, 3])
    prepared = kda_prepare(*both, chunk_start=start, chunk_end=end, chunk_tokens=16)
    maps = kda_segment_maps(prepared, seg_chunk)
    starts, final = kda_scan(maps, np.stack([a[5], b[5]]), seq_seg)
    o, after = kda_output(prepared, starts, seg_chunk, start, end, 103)
    want = [kda_recurrence(*x) for x in (a, b)]
    assert np.allclose(o, np.concatenate([w[0] for w in want]), atol=1e-13)
    assert np.allclose(final, np.stack([w[1] for w in want]), atol=1e-13)
    at_48 = kda_recurrence(*(x[:48] for x in a[:5]), state=a[5])[1]
    assert np.allclose(starts[1], at_48, atol=1e-13)
    assert np.allclose(after[seg_chunk[[1, 3]] - 1], [at_48, want[1][1]], atol=1e-13)


def test_chunk_bounds_lie_on_the_absolute_grid() -> None:
    start, end = chunk_bounds(100, first_position=50, chunk_tokens=64)
    assert start.tolist() == [0, 14, 78] and end.tolist() == [14, 78, 100]
    assert chunk_bounds(64, 64)[1].tolist() == [64]
