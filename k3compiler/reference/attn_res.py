"""Attention Residuals: the mix over depth (spec 2.3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from k3compiler.reference.activations import softmax

Array = NDArray[Any]


def attn_res_scores(
    candidates: Sequence[Array] | Array, norm_w: Array, proj_w: Array, eps: float
) -> Array:
    """Scores of the candidates, from normed keys: -> ``[M, T]``."""
    v = np.asarray(candidates)
    keys = v / np.sqrt((v * v).mean(axis=-1, keepdims=True) + eps)
    return keys @ (norm_w * proj_w.reshape(-1))


def attn_res_mix(
    candidates: Sequence[Array] | Array, norm_w: Array, proj_w: Array, eps: float
) -> Array:
    """Softmax over the candidates, applied to the raw candidates.

    Shapes: ``candidates`` M of ``[T, D]`` (snapshots, oldest first, then the running sum),
    ``norm_w [D]``, ``proj_w [D] or [1, D]`` -> ``[T, D]``. Source: spec 2.3.
    """
    v = np.asarray(candidates)
    a = softmax(attn_res_scores(v, norm_w, proj_w, eps), axis=0)
    return (a[..., None] * v).sum(axis=0)
