"""Router, routed experts, LatentMoE tail, dense FFN (spec section 5)."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from k3compiler.reference.activations import GatedActivation, sigmoid
from k3compiler.reference.linear import linear
from k3compiler.reference.norms import rms_norm

Array = NDArray[Any]
RENORMALIZE_EPS = 1e-20


class ExpertWeights(Protocol):
    """One matrix per expert: an array ``[E, out, in]``, a list, or a lazy loader."""

    def __getitem__(self, expert: int, /) -> Array: ...


def choose_experts(scores: Array, bias: Array, top_k: int) -> Array:
    """The ``top_k`` largest ``scores + bias``, largest first, ties to the lowest index.

    Shapes: ``scores [T, E]`` (after the sigmoid), ``bias [E]`` -> ids ``[T, top_k] i32``.
    """
    return np.argsort(-(scores + bias), axis=-1, kind="stable")[:, :top_k].astype(np.int32)


def weigh_experts(scores: Array, ids: Array, renormalize: bool, scale: float) -> Array:
    """Weights of the chosen, from the unbiased scores: ``ids [T, k]`` -> ``[T, k]``."""
    chosen = np.take_along_axis(scores, ids, axis=1)
    if renormalize:
        chosen = chosen / (chosen.sum(axis=1, keepdims=True) + RENORMALIZE_EPS)
    return chosen * scores.dtype.type(scale)


def route(
    y: Array, gate_w: Array, bias: Array, top_k: int, renormalize: bool, scale: float
) -> tuple[Array, Array]:
    """Sigmoid router with bias-corrected selection (spec 5.1).

    Shapes: ``y [T, D]``, ``gate_w [E, D]``, ``bias [E]`` -> ``ids [T, k] i32``,
    ``weights [T, k]``.
    """
    scores = sigmoid(linear(y, gate_w))
    ids = choose_experts(scores, bias, top_k)
    return ids, weigh_experts(scores, ids, renormalize, scale)


def gated_mlp(y: Array, gate_w: Array, up_w: Array, down_w: Array, act: GatedActivation) -> Array:
    """``down(act(gate y, up y))``: dense layer, shared experts and one routed expert alike."""
    return linear(act(linear(y, gate_w), linear(y, up_w)), down_w)


def experts(
    z: Array,
    ids: Array,
    weights: Array,
    w1: ExpertWeights,
    w3: ExpertWeights,
    w2: ExpertWeights,
    act: GatedActivation,
) -> Array:
    """Weighted sum of the chosen experts (spec 5.2).

    Shapes: ``z [T, L]``, ``ids, weights [T, k]``, ``w1, w3 [E][F, L]``, ``w2 [E][L, F]``
    -> ``[T, L]``. Negative ids are left out (another rank's experts).
    """
    r = np.zeros_like(z)
    for e in np.unique(ids[ids >= 0]):
        token, slot = np.nonzero(ids == e)
        out = gated_mlp(z[token], w1[int(e)], w3[int(e)], w2[int(e)], act)
        np.add.at(r, token, weights[token, slot][:, None] * out)
    return r


def latent_tail(r: Array, norm_w: Array | None, up_w: Array, shared: Array, eps: float) -> Array:
    """Norm of the **aggregated** latent, up-projection, plus the shared experts (spec 5.2).

    Shapes: ``r [T, L]`` (complete: summed over all ranks), ``up_w [D, L]``, ``shared [T, D]``.
    """
    if norm_w is not None:
        r = rms_norm(r, norm_w, eps)
    return linear(r, up_w) + shared
