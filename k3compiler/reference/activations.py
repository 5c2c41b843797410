"""Pointwise functions and the two gated activations (spec 3.2, 5.3)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from k3compiler.config import ModelConfig

Array = NDArray[Any]
GatedActivation = Callable[[Array, Array], Array]


def sigmoid(x: Array) -> Array:
    """``1 / (1 + e^-x)``, accurate on both sides."""
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, np.ones_like(e), e) / (1 + e)


def silu(x: Array) -> Array:
    """``x sigmoid(x)``."""
    return x * sigmoid(x)


def softplus(x: Array) -> Array:
    """``log(1 + e^x)``, without overflow."""
    return np.logaddexp(x, np.zeros_like(x))


def softmax(x: Array, axis: int) -> Array:
    """Softmax along ``axis``; entries of -inf get weight 0."""
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


def situ(g: Array, u: Array, beta: float, linear_beta: float | None) -> Array:
    """SiTU-GLU: both branches capped by tanh, the sigmoid takes the uncapped gate.

    ``linear_beta`` None leaves the up branch uncapped. Source: spec 5.3.
    """
    gate = beta * np.tanh(g / beta) * sigmoid(g)
    up = u if linear_beta is None else linear_beta * np.tanh(u / linear_beta)
    return gate * up


def swiglu(g: Array, u: Array) -> Array:
    """``silu(g) u``, the Kimi-Linear-48B activation."""
    return silu(g) * u


def gated_activation(config: ModelConfig) -> GatedActivation:
    """The model's activation as a function of (gate, up)."""
    if config.activation == "silu":
        return swiglu
    return lambda g, u: situ(g, u, config.situ_beta, config.situ_linear_beta)
