"""The rules of ``kernels/sample.py`` on the host: the kernels' reference, and for plans that end with logits.

Randomness is a function of seed, step and token alone, so a request draws the same numbers whatever
else is in the batch, and a draft is verified with those that decoding would have used.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from k3compiler.runtime.step import SamplerRow

Array = NDArray[Any]
LEAST_HEAT = 1e-30  # a lower temperature counts as this one


def sample(logits: NDArray[np.float32], row: SamplerRow) -> int:
    """The next token. Shapes: ``logits [vocab] f32``."""
    return int(scores(logits, row, lowest_kept(logits, row)).argmax())


def lowest_kept(logits: Array, row: SamplerRow) -> float:
    """The lowest logit that may be drawn, -inf where all may: ``logits [vocab]`` f32."""
    keep = np.ones(len(logits), bool)
    if row.temperature <= 0:
        return -np.inf
    if 0 < row.top_k < len(logits):
        keep = logits >= np.sort(logits)[-row.top_k]
    if row.top_p < 1:
        heat = max(row.temperature, LEAST_HEAT)
        weights = np.exp((logits.astype(np.float64) - logits.max()) / heat)
        order = np.argsort(-logits, kind="stable")
        total = np.cumsum(np.where(keep, weights, 0)[order])
        keep &= logits >= logits[order[np.searchsorted(total, row.top_p * total[-1])]]
    return -np.inf if keep.all() else float(logits[keep].min())


def scores(logits: Array, row: SamplerRow, lowest: float) -> Array:
    """What the token is the argmax of: ``[vocab]`` float64."""
    if row.temperature <= 0:
        return logits.astype(np.float64)
    noisy = logits.astype(np.float64) / max(row.temperature, LEAST_HEAT)
    noisy += gumbel(row.seed, row.step_idx, len(logits))
    return np.where(logits >= lowest, noisy, -np.inf)


def gumbel(seed: int, step_idx: int, vocab: int) -> Array:
    """The noise of every token: -> ``[vocab]`` float64."""
    key = mix(step_idx ^ mix(seed).astype(np.int64))
    h = mix(key ^ mix(np.arange(vocab)))
    return -np.log(-np.log(((h >> np.uint32(9)) + 0.5) / 2**23))


def mix(x: Array | int) -> Array:
    """The finaliser of MurmurHash3 on uint32."""
    word: Array = np.atleast_1d(np.asarray(x, np.int64)).astype(np.uint32)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        word = (word ^ (word >> np.uint32(shift))) * np.uint32(factor)
    return word ^ (word >> np.uint32(16))
