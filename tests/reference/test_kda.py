"""Convolution, gate and recurrence: check values of spec 3.3 and 3.4, and state handling."""

from __future__ import annotations

import numpy as np
import pytest

from k3compiler.reference.kda import kda_gate, kda_recurrence, short_conv

RNG = np.random.default_rng(11)


@pytest.mark.parametrize(
    ("a_log", "z", "want"), [(0, 0, -2.5), (0.5, 1.2, -4.392587455), (-1, -3, -1.245294015)]
)
def test_bounded_gate_check_values(a_log: float, z: float, want: float) -> None:
    f, bias = np.full((1, 1, 2), z - 0.25), np.full(2, 0.25)
    g = kda_gate(f, np.array([a_log, 99.0]), bias, -5.0)
    assert np.allclose(g, want, atol=5e-10)


def test_softplus_gate() -> None:
    f, a_log = np.array([[[0.5, -2.0]]]), np.array([[[[0.3]]]])
    g = kda_gate(f, a_log, np.array([0.1, 0.2]), None)
    assert np.allclose(g, -np.exp(0.3) * np.log1p(np.exp([[[0.6, -1.8]]])), rtol=1e-12)


def test_gate_takes_one_a_log_per_head_and_one_bias_per_channel() -> None:
    f, a_log = RNG.standard_normal((4, 3, 5)), RNG.standard_normal(8)
    bias = RNG.standard_normal(15)
    g = kda_gate(f, a_log, bias, -5.0)
    for h in range(3):
        for d in range(5):
            z = np.exp(a_log[h]) * (f[:, h, d] + bias[h * 5 + d])
            assert np.allclose(g[:, h, d], -5 / (1 + np.exp(-z)))


def test_recurrence_check_values() -> None:
    q = np.array([[[1, 0.0]], [[0.6, 0.8]]])
    k = np.array([[[0.6, 0.8]], [[1, 0.0]]])
    v = np.array([[[1, 2.0]], [[-1, 1.0]]])
    g = np.array([[[-1, -0.5]], [[-0.2, -2]]])
    o, state = kda_recurrence(q, k, v, g, np.array([[0.5], [0.75]]), None)
    assert np.allclose(o[0, 0], [0.3, 0.6], atol=1e-12)
    assert np.allclose(o[1, 0], [-0.3698498255, 0.6103003490], atol=1e-10)
    want = [[-0.6885951935, 0.8728096130], [0.0541341133, 0.1082682266]]  # [K, V]
    assert np.allclose(state[0].T, want, atol=1e-10)


def test_recurrence_with_k_other_than_v_against_the_matrix_form() -> None:
    """S <- (I - beta k k^T) diag(alpha) S + beta k v^T, with S [K, V], one head at a time."""
    tokens, heads, k_dim, v_dim = 9, 2, 6, 4
    q, k = RNG.standard_normal((2, tokens, heads, k_dim))
    v = RNG.standard_normal((tokens, heads, v_dim))
    g = -5 * RNG.random((tokens, heads, k_dim))
    beta, start = RNG.random((tokens, heads)), RNG.standard_normal((heads, v_dim, k_dim))
    o, state = kda_recurrence(q, k, v, g, beta, start)
    for h in range(heads):
        s = start[h].T
        for t in range(tokens):
            kt = k[t, h][:, None]
            s = (np.eye(k_dim) - beta[t, h] * kt @ kt.T) @ np.diag(np.exp(g[t, h])) @ s
            s = s + beta[t, h] * kt @ v[t, h][None]
            assert np.allclose(o[t, h], q[t, h] @ s)
        assert np.allclose(state[h], s.T)
    assert state.shape == (heads, v_dim, k_dim)


def test_recurrence_in_pieces_and_input_state_untouched() -> None:
    q, k, v = RNG.standard_normal((3, 7, 2, 4))
    g, beta = -RNG.random((7, 2, 4)), RNG.random((7, 2))
    whole, end = kda_recurrence(q, k, v, g, beta, None)
    first, state = kda_recurrence(q[:3], k[:3], v[:3], g[:3], beta[:3], None)
    kept = state.copy()
    second, last = kda_recurrence(q[3:], k[3:], v[3:], g[3:], beta[3:], state)
    assert np.allclose(np.concatenate([first, second]), whole) and np.allclose(last, end)
    assert np.array_equal(state, kept)


def test_short_conv_against_its_sum() -> None:
    u, w = RNG.standard_normal((6, 3)), RNG.standard_normal((3, 1, 4))
    y, state = short_conv(u, w, None)
    for t in range(6):
        for c in range(3):
            taps = [w[c, 0, j] * u[t - 3 + j, c] for j in range(4) if t - 3 + j >= 0]
            assert y[t, c] == pytest.approx(sum(taps))
    assert np.array_equal(state, u[3:])


@pytest.mark.parametrize("cut", [1, 2, 3, 5])
def test_short_conv_in_pieces(cut: int) -> None:
    u, w = RNG.standard_normal((7, 3)), RNG.standard_normal((3, 4))
    whole, end = short_conv(u, w, None)
    first, state = short_conv(u[:cut], w, None)
    second, last = short_conv(u[cut:], w, state)
    assert np.allclose(np.concatenate([first, second]), whole) and np.array_equal(last, end)
