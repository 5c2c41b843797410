"""How well a checkpoint predicts a text: bits per byte, loss by position, tokens per second."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from math import log
from typing import Any

import numpy as np
from numpy.typing import NDArray

from k3compiler.errors import K3Error

Array = NDArray[Any]
Logits = Callable[[Sequence[int]], Array]

FIRST_EDGES = (0, 16, 64, 256, 1024)  # of the position ranges; doubled from there on


@dataclass(frozen=True, slots=True)
class PositionLoss:
    """Mean loss (nats per token) of the tokens whose context holds ``start + 1 .. end`` tokens."""

    start: int
    end: int
    tokens: int
    loss: float


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A text's score. ``loss`` is in nats per token; a window's first token is context only.

    ``num_bytes`` counts the bytes of the predicted tokens; ``seconds`` is time inside the model.
    """

    num_tokens: int
    num_bytes: int
    num_windows: int
    loss: float
    bits_per_byte: float
    tokens_per_second: float
    by_position: tuple[PositionLoss, ...]

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


def evaluate_tokens(
    logits: Logits, tokens: Sequence[int], token_bytes: Callable[[int], bytes], window: int
) -> Evaluation:
    """Score ``tokens`` in windows of at most ``window`` tokens, each from an empty state.

    ``logits`` maps ids ``[T]`` to ``[T, vocab]``, row i predicting token i + 1. Consecutive windows
    share one token, so every token but the first is predicted once.

    Raises:
        K3Error: K3-R003 where the text has fewer than two tokens.
    """
    if len(tokens) < 2:
        raise K3Error(
            "K3-R003", where="text", expected="at least two tokens", found=f"{len(tokens)}"
        )
    sums, counts = np.zeros(window), np.zeros(window, np.int64)
    num_bytes, num_windows, seconds = 0, 0, 0.0
    for part in _windows(tokens, window):
        began = time.perf_counter()
        rows = logits(part[:-1])
        seconds += time.perf_counter() - began
        losses = token_losses(rows, np.asarray(part[1:]))
        sums[: len(losses)] += losses
        counts[: len(losses)] += 1
        num_bytes += sum(len(token_bytes(t)) for t in part[1:])
        num_windows += 1
    total = int(counts.sum())
    return Evaluation(
        num_tokens=total,
        num_bytes=num_bytes,
        num_windows=num_windows,
        loss=float(sums.sum() / total),
        bits_per_byte=float(sums.sum() / log(2) / max(1, num_bytes)),
        tokens_per_second=total / max(seconds, 1e-9),
        by_position=tuple(_by_position(sums, counts)),
    )


def token_losses(logits: Array, targets: Array) -> Array:
    """Cross entropy per row in nats: ``logits [T, vocab]``, ``targets [T]`` -> ``[T] f64``."""
    wide = logits.astype(np.float64)
    peak = wide.max(axis=1)
    norm = peak + np.log(np.exp(wide - peak[:, None]).sum(axis=1))
    return norm - wide[np.arange(len(targets)), targets]


def _windows(tokens: Sequence[int], window: int) -> Iterator[Sequence[int]]:
    for start in range(0, len(tokens) - 1, window):
        yield tokens[start : start + window + 1]


def _by_position(sums: Array, counts: Array) -> Iterator[PositionLoss]:
    edges: list[int] = list(FIRST_EDGES)
    while edges[-1] < len(sums):
        edges.append(2 * edges[-1])
    for start, end in pairwise(edges):
        count = int(counts[start:end].sum())
        if count:
            loss = float(sums[start:end].sum() / count)
            yield PositionLoss(start, min(end, len(sums)), count, loss)
