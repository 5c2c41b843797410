"""Choosing the next token from a row of logits.

Randomness is a counter-based Philox4x32-10 keyed by the request's seed and counted by its step, so
a request draws the same numbers whatever else is in the batch.
Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from k3compiler.errors import K3Error

MAX_SEED = 2**31 - 1
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_MASK = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How a request's tokens are chosen.

    Attributes:
        max_tokens: new tokens at most.
        temperature: 0 is greedy (the lowest index among equals).
        top_k: keep the k likeliest tokens; 0 keeps all.
        top_p: keep the likeliest tokens whose probabilities first reach this sum; 1 keeps all.
        seed: 0 .. 2**31-1; None draws one when the request is made.
        stop_ids: end the request when one of these is chosen, besides the model's own end token.
        ignore_eos: do not stop at the model's end token.

    Raises:
        K3Error: K3-R004 a value out of range.
    """

    max_tokens: int = 16
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    stop_ids: tuple[int, ...] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        finite = math.isfinite(self.temperature)
        seed_fits = self.seed is None or 0 <= self.seed <= MAX_SEED
        _require(self.max_tokens >= 1, "max_tokens", "at least 1", self.max_tokens)
        _require(finite and self.temperature >= 0, "temperature", ">= 0", self.temperature)
        _require(self.top_k >= 0, "top_k", "at least 0 (0 keeps all)", self.top_k)
        _require(0 < self.top_p <= 1, "top_p", "in (0, 1]", self.top_p)
        _require(seed_fits, "seed", f"0..{MAX_SEED} or None", self.seed)

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0 or self.top_k == 1


def _require(fine: bool, name: str, expected: str, found: object) -> None:
    assert name in {f.name for f in fields(SamplingParams)}
    if not fine:
        raise K3Error("K3-R004", where=name, expected=expected, found=str(found))


def philox_uniform(seed: int, step: int) -> float:
    """A number in [0, 1) with 53 bits, a pure function of ``(seed, step)``."""
    key = (seed & _MASK, seed >> 32 & _MASK)
    counter = (step & _MASK, step >> 32 & _MASK, 0, 0)
    words = philox4x32(counter, key)
    return ((words[0] << 32 | words[1]) >> 11) * 2.0**-53


def philox4x32(
    counter: tuple[int, int, int, int], key: tuple[int, int]
) -> tuple[int, int, int, int]:
    """Ten rounds of Philox4x32: four 32-bit words from a counter and a key."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        p0, p1 = _MULTIPLIERS[0] * c0, _MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = p1 >> 32 ^ c1 ^ k0, p1 & _MASK, p0 >> 32 ^ c3 ^ k1, p0 & _MASK
        k0, k1 = k0 + _WEYL[0] & _MASK, k1 + _WEYL[1] & _MASK
    return c0, c1, c2, c3


def sample(logits: NDArray[np.float32], params: SamplingParams, *, seed: int, step: int) -> int:
    """The next token.

    Shapes: ``logits [vocab] f32``.

    Args:
        seed: the request's seed (``params.seed`` or the one drawn for it).
        step: how many tokens the request has chosen before.
    """
    if params.is_greedy:
        return int(logits.argmax())
    ids, probabilities = filtered(logits, params)
    total = np.cumsum(probabilities)
    point = philox_uniform(seed, step) * total[-1]
    return int(ids[min(int(np.searchsorted(total, point, side="right")), len(ids) - 1)])


def filtered(
    logits: NDArray[np.float32], params: SamplingParams
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The tokens that top-k and top-p keep, and their (unnormalised, positive) probabilities.

    Top-p counts probabilities after top-k. Equal logits rank by index.
    """
    wide = logits.astype(np.float64)
    with np.errstate(over="ignore"):  # a tiny temperature: all but the largest go to -inf
        scaled = (wide - wide.max()) / params.temperature
    weights = np.exp(scaled)
    ids: NDArray[Any] = np.arange(len(weights))
    if params.top_k or params.top_p < 1:
        ids = np.argsort(-scaled, kind="stable")
    if 0 < params.top_k < len(ids):
        ids = ids[: params.top_k]
    if params.top_p < 1:
        sums = np.cumsum(weights[ids])
        ids = ids[: int(np.searchsorted(sums, params.top_p * sums[-1], side="left")) + 1]
    return ids, weights[ids]
