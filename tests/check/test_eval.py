"""The score of a text against counts made by hand."""

from __future__ import annotations

from collections.abc import Sequence
from math import log

import numpy as np
import pytest

from k3compiler.check.eval import evaluate_tokens, token_losses
from k3compiler.errors import K3Error

VOCAB = 8


def _uniform(tokens: Sequence[int]) -> np.ndarray:
    return np.zeros((len(tokens), VOCAB), np.float32)


def _two_bytes(token: int) -> bytes:
    return b"%02d" % token


def test_a_uniform_model_costs_log_vocab() -> None:
    result = evaluate_tokens(_uniform, [1, 2, 3, 4, 5, 6, 7], _two_bytes, 4)
    assert result.num_tokens == 6 and result.num_bytes == 12 and result.num_windows == 2
    assert result.loss == pytest.approx(log(VOCAB))
    assert result.bits_per_byte == pytest.approx(3 / 2)


def test_every_token_but_the_first_is_predicted_once() -> None:
    seen: list[list[int]] = []

    def logits(tokens: Sequence[int]) -> np.ndarray:
        seen.append(list(tokens))
        return _uniform(tokens)

    evaluate_tokens(logits, list(range(8)), _two_bytes, 3)
    assert seen == [[0, 1, 2], [3, 4, 5], [6]]


def test_losses_by_position() -> None:
    """A model that knows the answer from its 17th token on."""
    tokens = [n % VOCAB for n in range(41)]

    def logits(part: Sequence[int]) -> np.ndarray:
        rows = _uniform(part)
        for i, token in enumerate(part):
            rows[i, (token + 1) % VOCAB] = 50.0 if i >= 16 else 0.0
        return rows

    result = evaluate_tokens(logits, tokens, _two_bytes, 40)
    early, late = result.by_position
    assert (early.start, early.end, early.tokens) == (0, 16, 16)
    assert (late.start, late.end, late.tokens) == (16, 40, 24)
    assert early.loss == pytest.approx(log(VOCAB)) and late.loss < 1e-9


def test_token_losses_are_cross_entropies() -> None:
    rows = np.random.default_rng(0).normal(0, 30, (5, VOCAB)).astype(np.float32)
    targets = np.array([0, 3, 7, 1, 1])
    p = np.exp(rows.astype(np.longdouble))
    want = -np.log((p / p.sum(1, keepdims=True))[np.arange(5), targets])
    assert np.allclose(token_losses(rows, targets), want.astype(float))


def test_too_little_text() -> None:
    with pytest.raises(K3Error, match="K3-R003"):
        evaluate_tokens(_uniform, [1], _two_bytes, 4)
