"""How a request's tokens are chosen; the rules are in ``sampler.py`` and ``kernels/sample.py``."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from k3compiler.errors import K3Error

MAX_SEED = 2**31 - 1


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How a request's tokens are chosen.

    Attributes:
        max_tokens: new tokens at most.
        temperature: 0 is greedy (the lowest index among equals).
        top_k: keep the k likeliest tokens, and those that equal the last; 0 keeps all.
        top_p: keep the likeliest tokens whose probabilities first reach this sum, and those that
            equal the last; 1 keeps all.
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
