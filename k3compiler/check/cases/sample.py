"""Sampling cases: the rules of ``kernels/sample.py`` as ``runtime/sampler.py`` has them.

A draw that hangs on the last bits of a weight or of a score is not a fair question: such settings get
another seed, or another share.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from k3compiler.check.case import Array, Case, Params, poisoned
from k3compiler.check.cases.gemm import normal
from k3compiler.runtime.sampler import lowest_kept, scores
from k3compiler.runtime.step import SamplerRow

MARGIN = 1e-3


def draw(logits: Array, row: SamplerRow) -> tuple[int, bool]:
    """The token, and whether no close call decided it: ``logits [vocab]`` f32."""
    lowest = lowest_kept(logits, row)
    score = scores(logits, row, lowest)
    choice = int(score.argmax())
    rest = np.delete(score, choice).max(initial=-np.inf)
    is_clear = all(lowest_kept(logits, near) == lowest for near in _near(row))
    return choice, row.temperature <= 0 or (is_clear and bool(score[choice] - rest > MARGIN))


def _near(row: SamplerRow) -> list[SamplerRow]:
    """Settings whose share is a rounding error away."""
    if row.top_p >= 1:
        return []
    return [replace(row, top_p=row.top_p * (1 + error)) for error in (-1e-5, 1e-5)]


def ordered(logits: Array) -> Array:
    """Integers in the order of the floats; the lowest of all for -inf."""
    bits = np.asarray(logits, np.float32).view(np.int32)
    return np.where(
        np.isneginf(logits), -(2**31), np.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    ).astype(np.int32)


def _rows(rng: np.random.Generator, rows: int, vocab: int) -> tuple[Array, list[SamplerRow]]:
    """Logits with ties at the top, and settings whose draws are clear."""
    logits = normal(rng, (rows, vocab), "f32", 3.0)
    logits[:, rng.integers(0, vocab, 3)] = logits.max(1, keepdims=True)
    kinds = [
        (0.0, 3, 0.5),
        (1.0, 0, 1.0),
        (0.7, 5, 1.0),
        (1.0, 0, 0.8),
        (1.3, 40, 0.9),
        (2.5, 2**20, 0.3),
        (1e6, 0, 1.0),
    ]
    chosen: list[SamplerRow] = []
    for i, row in enumerate(logits):
        heat, top_k, top_p = kinds[i % len(kinds)]
        seed, step_idx = (int(n) for n in rng.integers(-(2**31), 2**31 - 200, 2))
        chosen.append(_clear(row, SamplerRow(heat, top_k, top_p, seed, step_idx)))
    return logits, chosen


def _clear(logits: Array, row: SamplerRow) -> SamplerRow:
    """The first setting from ``row`` on whose draw is clear."""
    for _ in range(100):
        if draw(logits, row)[1]:
            return row
        row = replace(
            row, seed=row.seed + 1, top_p=row.top_p if row.top_p >= 1 else row.top_p * 0.99
        )
    raise AssertionError(f"no clear draw near {row}")


def _columns(rows: list[SamplerRow], *names: str) -> dict[str, Any]:
    kinds = {"temperature": np.float32, "top_p": np.float32}
    return {n: np.array([getattr(s, n) for s in rows], kinds.get(n, np.int32)) for n in names}


def sample_border(params: Params, rng: np.random.Generator, sizes: dict[str, int]) -> Case:
    logits, rows = _rows(rng, sizes.get("R", 8), params["vocab"])
    lowest = [lowest_kept(z, s) for z, s in zip(logits, rows, strict=True)]
    arguments: dict[str, Any] = {
        "logits": logits,
        **_columns(rows, "temperature", "top_k", "top_p"),
        "border": poisoned((len(rows),), "i32"),
    }
    return Case(arguments, {"border": ordered(np.array(lowest, np.float32))}, 0.0)


def sample_draw(params: Params, rng: np.random.Generator, sizes: dict[str, int]) -> Case:
    vocab, chunk = params["vocab"], params["chunk"]
    chunks = -(-vocab // chunk)
    logits, rows = _rows(rng, sizes.get("R", 8), vocab)
    lowest = [lowest_kept(z, s) for z, s in zip(logits, rows, strict=True)]
    want = np.full((len(rows), chunks * chunk), -np.inf)
    for row, z, s, low in zip(want, logits, rows, lowest, strict=True):
        row[:vocab] = scores(z, s, low)
    want = want.reshape(len(rows), chunks, chunk)
    token = want.argmax(2).astype(np.int32) + np.arange(chunks, dtype=np.int32) * chunk
    arguments: dict[str, Any] = {
        "logits": logits,
        "border": ordered(np.array(lowest, np.float32)),
        **_columns(rows, "temperature", "seed", "step_idx"),
        "score": poisoned((len(rows), chunks), "f32"),
        "token": poisoned((len(rows), chunks), "i32"),
    }
    return Case(arguments, {"token": token}, 0.0)


def sample_pick(params: Params, rng: np.random.Generator, sizes: dict[str, int]) -> Case:
    shape = (sizes.get("R", 8), params["chunks"])
    score = normal(rng, shape, "f32", 3.0)
    score[:, -1] = score[:, shape[1] // 2] = score.max(1) + 1  # a tie: the first chunk's token
    token = np.sort(rng.integers(0, 2**20, shape), axis=1).astype(np.int32)
    arguments = {"score": score, "token": token, "next_token": poisoned(shape[:1], "i32")}
    return Case(arguments, {"next_token": token[:, shape[1] // 2]}, 0.0)
