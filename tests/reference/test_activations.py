"""Check values of spec 5.3, and the pointwise functions at their far ends."""

from __future__ import annotations

import numpy as np
import pytest

from k3compiler.reference.activations import sigmoid, silu, situ, softplus
from k3compiler.reference.tiny import tiny_config


@pytest.mark.parametrize(
    ("g", "u", "want"),
    [
        (1, 1, 0.715817828),
        (-1, 2, -0.525828896),
        (6, -30, -75.27152172),
        (20, 100, 99.923856284),
        (-8, 3, -0.003860927),
    ],
)
def test_situ_check_values(g: float, u: float, want: float) -> None:
    got = situ(np.array(float(g)), np.array(float(u)), 4.0, 25.0)
    assert got == pytest.approx(want, rel=1e-8, abs=1e-9)


def test_situ_without_the_linear_cap() -> None:
    g, u = np.array(1.0), np.array(300.0)
    assert situ(g, u, 4.0, None) == pytest.approx(300 * situ(g, np.array(1.0), 4.0, None))


def test_far_ends() -> None:
    x = np.array([-800.0, -40.0, 0.0, 40.0, 800.0])
    assert np.allclose(sigmoid(x), [0, np.exp(-40), 0.5, 1, 1], rtol=1e-12, atol=0)
    assert np.allclose(softplus(x), [0, np.exp(-40), np.log(2), 40, 800], rtol=1e-12, atol=0)
    assert np.allclose(silu(x), [0, -40 * np.exp(-40), 0, 40, 800], rtol=1e-12, atol=0)
    assert sigmoid(x.astype(np.float32)).dtype == np.float32


def test_the_config_chooses_the_activation() -> None:
    from k3compiler.reference.activations import gated_activation

    g, u = np.array([6.0]), np.array([-30.0])
    assert gated_activation(tiny_config())(g, u) == pytest.approx(-75.27152172)
    assert gated_activation(tiny_config("linear"))(g, u) == pytest.approx(silu(g) * u)
