"""Norms against their definitions, element by element."""

from __future__ import annotations

import math

import numpy as np
import pytest

from k3compiler.reference.norms import gated_rms_norm, l2_normalize, rms_norm

X = np.array([[3.0, 4.0], [1e-4, 0.0]])
W = np.array([2.0, -1.0])


def test_rms_norm() -> None:
    scale = 1 / math.sqrt(12.5 + 1e-5)
    assert np.allclose(rms_norm(X, W, 1e-5)[0], [6 * scale, -4 * scale], rtol=1e-14)


def test_l2_eps_is_added_to_the_sum_under_the_root() -> None:
    small = 1e-4 / math.sqrt(1e-8 + 1e-6)
    assert l2_normalize(X)[1, 0] == pytest.approx(small, rel=1e-12)
    assert np.allclose(l2_normalize(X)[0], [0.6, 0.8], atol=1e-7)


def test_the_gate_comes_after_the_norm() -> None:
    o, gate = X[None], np.array([[[0.0, 100.0], [-100.0, 0.0]]])
    got = gated_rms_norm(o, W, gate, 1e-5)
    normed = rms_norm(o, W, 1e-5)
    assert np.allclose(got, normed * np.array([[[0.5, 1.0], [0.0, 0.5]]]), atol=1e-40)
