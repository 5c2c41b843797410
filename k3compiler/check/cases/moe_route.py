"""Cases of the router and the token sort."""

from __future__ import annotations

import numpy as np

from k3compiler.check.case import TOLERANCE, Array, Case, Params, poisoned
from k3compiler.reference.activations import sigmoid
from k3compiler.reference.moe import choose_experts, weigh_experts


def moe_topk(params: Params, rng: np.random.Generator, sizes: dict[str, int]) -> Case:
    """The first row is full of exact ties; in the others f32 rounding cannot change the order."""
    tokens, experts, top_k = sizes.get("T", 7), params["experts"], params["top_k"]
    bias = (0.1 * rng.standard_normal(experts)).astype(np.float32)
    bias[: experts // 2] = bias[0]
    logits = np.stack([_clear_row(rng, bias, top_k) for _ in range(tokens)])
    logits[0] = -30.0
    logits[0, : experts // 2] = rng.integers(-2, 2, experts // 2)
    scores = sigmoid(logits.astype(np.float64))
    ids = choose_experts(scores, bias.astype(np.float64), top_k)
    weights = weigh_experts(scores, ids, params["renormalize"], params["scale"])
    arguments = {
        "logits": logits, "bias": bias,
        "ids": poisoned(ids.shape, "i32"), "weights": poisoned(ids.shape, "f32"),
    }
    return Case(arguments, {"ids": ids, "weights": weights}, TOLERANCE["f32"])


def _gap(row: Array, bias: Array, top_k: int) -> float:
    """The smallest distance between neighbours among the best ``top_k + 1`` ranked scores."""
    ranked = np.sort(sigmoid(row.astype(np.float64)) + bias)[::-1][: top_k + 1]
    return float(np.min(-np.diff(ranked), initial=1.0))


def _clear_row(rng: np.random.Generator, bias: Array, top_k: int) -> Array:
    """Logits whose order f32 rounding cannot change."""
    while True:
        row = (1.5 * rng.standard_normal(len(bias))).astype(np.float32)
        if _gap(row, bias, top_k) >= 1e-5:
            return row
