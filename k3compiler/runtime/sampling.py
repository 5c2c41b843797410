"""How a request's tokens are chosen; the rules are in ``sampler.py`` and ``kernels/sample.py``."""

from __future__ import annotations

from dataclasses import dataclass, fields

from k3compiler.errors import K3Error

MAX_SEED = MAX_TOP_K = 2**31 - 1
MAX_TEMPERATURE = 1e6  # far from where a quotient of f32 vanishes


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How a request's tokens are chosen.

    Attributes:
        max_tokens: new tokens at most.
        temperature: 0 is greedy (the lowest index among equals); at most 1e6.
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
        is_warm = 0 <= self.temperature <= MAX_TEMPERATURE
        seed_fits = self.seed is None or 0 <= self.seed <= MAX_SEED
        _require(self.max_tokens >= 1, "max_tokens", "at least 1", self.max_tokens)
        _require(is_warm, "temperature", f"0..{MAX_TEMPERATURE:g}", self.temperature)
        _require(0 <= self.top_k <= MAX_TOP_K, "top_k", f"0..{MAX_TOP_K} (0 keeps all)", self.top_k)
        _require(0 < self.top_p <= 1, "top_p", "in (0, 1]", self.top_p)
        _require(seed_fits, "seed", f"0..{MAX_SEED} or None", self.seed)

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0 or self.top_k == 1


def _require(fine: bool, name: str, expected: str, found: object) -> None:
    assert name in {f.name for f in fields(SamplingParams)}
    if not fine:
        raise K3Error("K3-R004", where=name, expected=expected, found=str(found))
