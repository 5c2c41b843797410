"""Sampling cases: the rules of ``kernels/sample.py`` once more, in numpy.

A draw that hangs on the last bits of a weight or of a score is not a fair question: such settings get
another seed, or another share.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from k3compiler.check.case import Array, Case, Params, poisoned
from k3compiler.check.cases.gemm import normal

MARGIN = 1e-3


@dataclass(frozen=True, slots=True)
class Settings:
    """One row's sampling settings (``docs/package.md``)."""

    temperature: float
    top_k: int
    top_p: float
    seed: int
    step_idx: int


def mix(x: Array | int) -> Array:
    """The finaliser of MurmurHash3 on uint32."""
    word: Array = np.atleast_1d(np.asarray(x, np.int64)).astype(np.uint32)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        word = (word ^ (word >> np.uint32(shift))) * np.uint32(factor)
    return word ^ (word >> np.uint32(16))


def gumbel(seed: int, step_idx: int, vocab: int) -> Array:
    """The noise of every token: -> ``[vocab]`` float64."""
    key = mix(step_idx ^ mix(seed).astype(np.int64))
    h = mix(key ^ mix(np.arange(vocab)))
    return -np.log(-np.log(((h >> np.uint32(9)) + 0.5) / 2**23))


def draw(logits: Array, row: Settings) -> tuple[int, bool]:
    """The token, and whether no close call decided it: ``logits [vocab]`` f32."""
    if row.temperature <= 0:
        return int(logits.argmax()), True
    z = (logits.astype(np.float64) - logits.max()) / row.temperature
    keep = np.ones(len(z), bool)
    if 0 < row.top_k < len(z):
        keep = logits >= np.sort(logits)[-row.top_k]
    is_clear = True
    if row.top_p < 1:
        order = np.argsort(-logits, kind="stable")
        total = np.cumsum(np.where(keep, np.exp(z), 0)[order])
        need = row.top_p * total[-1]
        keep &= logits >= logits[order[np.searchsorted(total, need)]]
        is_clear = bool(np.abs(total / need - 1).min() > 1e-5)
    score = np.where(keep, z + gumbel(row.seed, row.step_idx, len(z)), -np.inf)
    choice = int(score.argmax())
    rest = np.delete(score, choice).max(initial=-np.inf)
    return choice, is_clear and bool(score[choice] - rest > MARGIN)


def _clear(logits: Array, row: Settings) -> tuple[Settings, int]:
    """The first setting from ``row`` on whose draw is clear."""
    for _ in range(100):
        choice, is_clear = draw(logits, row)
        if is_clear:
            return row, choice
        row = replace(
            row, seed=row.seed + 1, top_p=row.top_p if row.top_p >= 1 else row.top_p * 0.99
        )
    raise AssertionError(f"no clear draw near {row}")


def sample(params: Params, rng: np.random.Generator, sizes: dict[str, int]) -> Case:
    rows, vocab = sizes.get("R", 8), params["vocab"]
    logits = normal(rng, (rows, vocab), "f32", 3.0)
    logits[:, rng.integers(0, vocab, 3)] = logits.max(1, keepdims=True)  # ties at the top
    kinds = [
        (0.0, 3, 0.5),
        (1.0, 0, 1.0),
        (0.7, 5, 1.0),
        (1.0, 0, 0.8),
        (1.3, 40, 0.9),
        (2.5, 2**20, 0.3),
    ]
    chosen: list[tuple[Settings, int]] = []
    for i, row in enumerate(logits):
        heat, top_k, top_p = kinds[i % len(kinds)]
        seed, step_idx = (int(n) for n in rng.integers(-(2**31), 2**31 - 200, 2))
        chosen.append(_clear(row, Settings(heat, top_k, top_p, seed, step_idx)))
    arguments: dict[str, Any] = {
        "logits": logits,
        "temperature": np.array([s.temperature for s, _ in chosen], np.float32),
        "top_k": np.array([s.top_k for s, _ in chosen], np.int32),
        "top_p": np.array([s.top_p for s, _ in chosen], np.float32),
        "seed": np.array([s.seed for s, _ in chosen], np.int32),
        "step_idx": np.array([s.step_idx for s, _ in chosen], np.int32),
        "next_token": poisoned((rows,), "i32"),
    }
    return Case(arguments, {"next_token": np.array([t for _, t in chosen], np.int32)}, 0.0)
