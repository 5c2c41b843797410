"""MLA against a plain loop, and the absorbed form against the expanded one."""

from __future__ import annotations

import numpy as np

from k3compiler.reference.mla import (
    mla_attention,
    mla_attention_absorbed,
    mla_cache_rows,
    mla_output_gate,
    split_kv_b,
)
from k3compiler.reference.norms import rms_norm

RNG = np.random.default_rng(3)
HEADS, NOPE, ROPE, V_DIM, RANK = 3, 5, 4, 6, 7
KV_B = RNG.standard_normal((HEADS * (NOPE + V_DIM), RANK))


def test_against_a_loop() -> None:
    q, cache = RNG.standard_normal((4, HEADS, NOPE + ROPE)), RNG.standard_normal((9, RANK + ROPE))
    w_uk, w_uv = split_kv_b(KV_B, HEADS, NOPE)
    o = mla_attention(q, cache, w_uk, w_uv, first_position=5)
    for t in range(4):
        for h in range(HEADS):
            rows = cache[: 5 + t + 1]
            expanded = rows[:, :RANK] @ KV_B.reshape(HEADS, -1, RANK)[h].T
            k = np.concatenate([expanded[:, :NOPE], rows[:, RANK:]], axis=1)
            p = np.exp(k @ q[t, h] * (NOPE + ROPE) ** -0.5)
            assert np.allclose(o[t, h], p / p.sum() @ expanded[:, NOPE:])


def test_absorbed_equals_expanded() -> None:
    q, cache = RNG.standard_normal((3, HEADS, NOPE + ROPE)), RNG.standard_normal((20, RANK + ROPE))
    w = split_kv_b(KV_B, HEADS, NOPE)
    got = mla_attention_absorbed(q, cache, *w, first_position=17)
    assert np.allclose(got, mla_attention(q, cache, *w, first_position=17), atol=1e-13)


def test_only_the_latent_is_normed() -> None:
    kv_a, w = RNG.standard_normal((3, RANK + ROPE)), RNG.standard_normal(RANK)
    rows = mla_cache_rows(kv_a, w, 1e-6)
    assert np.allclose(rows[:, :RANK], rms_norm(kv_a[:, :RANK], w, 1e-6))
    assert np.array_equal(rows[:, RANK:], kv_a[:, RANK:])


def test_output_gate() -> None:
    o, gate = np.array([2.0, -3.0]), np.array([0.0, 50.0])
    assert np.allclose(mla_output_gate(o, gate), [1.0, -3.0])
