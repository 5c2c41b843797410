"""RMSNorm, L2 normalisation, and the gated norm of KDA's output (spec notation, 3.3, 3.5)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from k3compiler.config import L2_NORM_EPS
from k3compiler.reference.activations import sigmoid

Array = NDArray[Any]


def rms_norm(x: Array, w: Array, eps: float) -> Array:
    """``x rsqrt(mean(x²) + eps) w`` along the last axis: ``x [..., D]``, ``w [D]``."""
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps) * w


def l2_normalize(x: Array, eps: float = L2_NORM_EPS) -> Array:
    """``x rsqrt(Σ x² + eps)``: eps is added to the sum of squares, under the root (spec 3.3)."""
    return x / np.sqrt((x * x).sum(axis=-1, keepdims=True) + eps)


def gated_rms_norm(o: Array, w: Array, gate: Array, eps: float) -> Array:
    """Norm per head, then the sigmoid gate (spec 3.5).

    Shapes: ``o [T, H, V]``, ``w [V]``, ``gate [T, H, V]`` (logits) -> ``[T, H, V]``.
    """
    return rms_norm(o, w, eps) * sigmoid(gate)
