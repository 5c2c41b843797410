"""Embedding and linear maps (spec 7.1); stored weights are ``[out, in]``, never a bias."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

Array = NDArray[Any]


def embed(tokens: Array, table: Array) -> Array:
    """Rows of the table: ``tokens [T] i32``, ``table [vocab, D]`` -> ``[T, D]``; no scaling."""
    return table[tokens]


def linear(x: Array, w: Array) -> Array:
    """``x wᵀ``: ``x [..., in]``, ``w [out, in]`` -> ``[..., out]``."""
    return x @ w.T
