"""The byte 5-gram that k3-nano is measured against: counted by hand, and sums to one."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from examples.train.ngram import ByteModel, Level, pack


def _bytes(text: bytes) -> np.ndarray:
    return np.frombuffer(text, np.uint8)


def test_packing() -> None:
    assert pack(_bytes(b"abcd"), 3).tolist() == [0x616263, 0x626364]
    assert pack(_bytes(b"ab"), 3).tolist() == []


@pytest.mark.parametrize("context", [b"abca", b"zzza", b"zzzz", b"b ca"])
def test_probabilities_sum_to_one(context: bytes) -> None:
    text = np.random.default_rng(0).choice(_bytes(b"abcab cab"), 5000)
    model = ByteModel.fit([text[:2000], text[2000:]])
    grams = np.arange(256, dtype=np.uint64) + np.uint64(int.from_bytes(context, "big") << 8)
    p = model.probabilities(grams)
    assert p.min() > 0 and p.sum() == pytest.approx(1)


def test_a_level_by_hand() -> None:
    """ "ab" twice, "ac" once; with so few counts the discounts are 0.5 and 1."""
    level = Level.of(pack(_bytes(b"ab\0ac"), 2)[[0, 3]], np.array([2, 1]))
    lower = np.array([0.25, 0.25, 0.25, 0.25])
    p = level.refine(pack(_bytes(b"abacadxa"), 2)[[0, 2, 4, 6]], lower)
    kept = 1.5 / 3 * 0.25
    assert p == pytest.approx([(2 - 1) / 3 + kept, (1 - 0.5) / 3 + kept, kept, 0.25])


def test_lower_orders_count_what_stands_in_front() -> None:
    """A byte seen often, but behind one byte only, is improbable elsewhere."""
    model = ByteModel.fit([_bytes(b"xq" * 50 + b"ae be ce de fe ge he ie je")])
    q, e = model.probabilities(
        np.array([int.from_bytes(b"ZZZZ" + last, "big") for last in (b"q", b"e")], np.uint64)
    )
    assert e > 3 * q


def test_learning_helps() -> None:
    text = _bytes(b"the quick brown fox jumps over the lazy dog. " * 40)
    model = ByteModel.fit([text[:900]])
    assert model.bits(text[900:], 4) / (len(text) - 904) < 0.5
