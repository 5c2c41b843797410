"""Router, experts and the latent tail against loops over the definitions."""

from __future__ import annotations

import numpy as np

from k3compiler.reference.activations import silu, swiglu
from k3compiler.reference.moe import experts, latent_tail, route
from k3compiler.reference.norms import rms_norm

RNG = np.random.default_rng(9)


def test_bias_selects_but_does_not_weigh() -> None:
    y, gate_w = np.eye(3), np.log([[3.0, 1, 1], [1, 3, 1], [1, 1, 1], [1 / 3, 1, 1]])
    bias = np.array([0.0, 0, 0, 0.6])
    ids, weights = route(y[:1], gate_w, bias, 2, True, 1.5)
    assert ids.tolist() == [[3, 0]]  # scores .75 .5 .5 .25; with the bias .75 .5 .5 .85
    assert np.allclose(weights, [[1.5 * 0.25, 1.5 * 0.75]])
    assert np.allclose(route(y[:1], gate_w, bias, 2, False, 1.0)[1], [[0.25, 0.75]])


def test_ties_go_to_the_lowest_index() -> None:
    ids, _ = route(np.ones((1, 2)), np.zeros((6, 2)), np.zeros(6), 3, True, 1.0)
    assert ids.tolist() == [[0, 1, 2]]


def test_experts_against_a_loop() -> None:
    tokens, latent, width, count, k = 6, 5, 7, 4, 2
    z = RNG.standard_normal((tokens, latent))
    w1, w3 = RNG.standard_normal((2, count, width, latent))
    w2 = RNG.standard_normal((count, latent, width))
    ids = np.array([RNG.permutation(count)[:k] for _ in range(tokens)])
    weights = RNG.random((tokens, k))
    got = experts(z, ids, weights, w1, w3, w2, swiglu)
    for t in range(tokens):
        parts = [
            weights[t, j] * (w2[e] @ (silu(w1[e] @ z[t]) * (w3[e] @ z[t])))
            for j, e in enumerate(ids[t])
        ]
        assert np.allclose(got[t], sum(parts))


def test_experts_of_other_ranks_are_left_out() -> None:
    z, w = RNG.standard_normal((2, 3)), RNG.standard_normal((2, 3, 3))
    ids, weights = np.array([[0, 1], [1, 0]]), RNG.random((2, 2))
    mine = experts(z, np.where(ids == 0, 0, -1), weights, w, w, w, swiglu)
    theirs = experts(z, np.where(ids == 1, 1, -1), weights, w, w, w, swiglu)
    assert np.allclose(mine + theirs, experts(z, ids, weights, w, w, w, swiglu))


def test_the_tail_norms_the_aggregate() -> None:
    r, norm_w = RNG.standard_normal((2, 4)), RNG.standard_normal(4)
    up_w, shared = RNG.standard_normal((6, 4)), RNG.standard_normal((2, 6))
    got = latent_tail(r, norm_w, up_w, shared, 1e-5)
    assert np.allclose(got, rms_norm(r, norm_w, 1e-5) @ up_w.T + shared)
    assert np.allclose(latent_tail(r, None, up_w, shared, 1e-5), r @ up_w.T + shared)
