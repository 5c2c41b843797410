"""Check vector of spec 2.3 and what the mix must not depend on."""

from __future__ import annotations

import numpy as np

from k3compiler.reference.attn_res import attn_res_mix, attn_res_scores

V1, V2 = np.array([[1.0, 2, 3, 4]]), np.array([[2.0, -1, 0.5, 0]])
NP = np.array([0.5, -0.25, 1, 0.1])
ONES = np.ones(4)


def test_check_vector() -> None:
    s = attn_res_scores([V1, V2], ONES, NP, 1e-5)
    assert np.allclose(s[:, 0], [1.24150364, 1.52751941], atol=5e-9)
    mix = attn_res_mix([V1, V2], ONES, NP, 1e-5)
    assert np.allclose(mix[0], [1.57102045, 0.28693865, 1.57244487, 1.7159182], atol=5e-9)


def test_norm_and_query_enter_as_a_product() -> None:
    n = np.array([2.0, -1, 0.5, 4])
    want = attn_res_mix([V1, V2], ONES, NP, 1e-5)
    assert np.allclose(attn_res_mix([V1, V2], n, (NP / n)[None], 1e-5), want)


def test_one_candidate_is_itself() -> None:
    assert np.array_equal(attn_res_mix([V1], ONES, NP, 1e-5), V1)


def test_order_and_other_tokens_do_not_matter() -> None:
    rng = np.random.default_rng(0)
    v = rng.standard_normal((3, 5, 4))
    mix = attn_res_mix(v, ONES, NP, 1e-5)
    assert np.allclose(attn_res_mix(v[::-1], ONES, NP, 1e-5), mix)
    assert np.allclose(attn_res_mix(v[:, 2:3], ONES, NP, 1e-5), mix[2:3])
