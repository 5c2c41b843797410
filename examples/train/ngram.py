"""An interpolated, modified Kneser-Ney model of bytes: what the example has to beat.

An n-gram is a number of ``8 n`` bits, the oldest byte highest, so counting is sorting.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
ORDER = 5
MERGE_AT = 1 << 25  # n-grams that wait for merging


@dataclass(frozen=True, slots=True)
class Level:
    """One order: n-grams and their counts, and per context what its n-grams sum to.

    Shapes: ``grams, counts [G]``; ``contexts, totals, mass [C]``, ``mass`` the sum of the discounts
    of a context's n-grams; ``discounts [4]`` by count, 3 for all above.
    """

    grams: Array
    counts: Array
    contexts: Array
    totals: Array
    mass: Array
    discounts: Array

    @classmethod
    def of(cls, grams: Array, counts: Array) -> Level:
        """From sorted n-grams. Source: Chen and Goodman's modified discounts."""
        discounts = _discounts(np.bincount(np.minimum(counts, 5), minlength=6))
        contexts, starts = np.unique(grams >> np.uint64(8), return_index=True)
        taken = discounts[np.minimum(counts, 3)]
        return cls(
            grams,
            counts,
            contexts,
            np.add.reduceat(counts, starts),
            np.add.reduceat(taken, starts),
            discounts,
        )

    def refine(self, grams: Array, lower: Array) -> Array:
        """This order's probability of each n-gram's last byte, given the lower order's ``[N]``."""
        context = grams >> np.uint64(8)
        at, is_known = _find(self.contexts, context)
        which, is_seen = _find(self.grams, grams)
        counts = np.where(is_seen, self.counts[which], 0)
        own = counts - self.discounts[np.minimum(counts, 3)]
        refined = (own + self.mass[at] * lower) / self.totals[at]
        return np.where(is_known, refined, lower)


def _find(table: Array, keys: Array) -> tuple[Array, Array]:
    at = np.minimum(np.searchsorted(table, keys), len(table) - 1)
    return at, table[at] == keys


def _discounts(n: Array) -> Array:
    """From the counts of counts ``[6]``; 0.5, 1, 1.5 where there are too few to tell."""
    if (n[1:5] == 0).any():
        return np.array([0, 0.5, 1, 1.5])
    share = n[1] / (n[1] + 2 * n[2])
    return np.array([0, *(k - (k + 1) * share * n[k + 1] / n[k] for k in (1, 2, 3))])


def pack(text: Array, order: int) -> Array:
    """All n-grams of ``text [N] u8`` in their order: ``[N - order + 1] u64``."""
    count = len(text) - order + 1
    keys = np.zeros(max(0, count), np.uint64)
    for n in range(order):
        keys = keys << np.uint64(8) | text[n : n + len(keys)].astype(np.uint64)
    return keys


class ByteModel:
    """Probabilities of bytes from up to four bytes before them."""

    def __init__(self, levels: list[Level]) -> None:
        self.levels = levels  # ascending orders

    @classmethod
    def fit(cls, pieces: Iterable[Array]) -> ByteModel:
        """From texts ``[N] u8`` (n-grams do not cross them)."""
        waiting: list[tuple[Array, Array]] = []
        for piece in pieces:
            waiting.append(np.unique(pack(piece, ORDER), return_counts=True))
            if sum(len(grams) for grams, _ in waiting) > MERGE_AT:
                waiting = [_merged(waiting)]
        grams, counts = _merged(waiting)
        levels = [Level.of(grams, counts)]
        for order in range(ORDER - 1, 0, -1):
            # Below the highest order, what counts is how many bytes were seen in front.
            kept = np.uint64((1 << 8 * order) - 1)
            grams, counts = np.unique(grams & kept, return_counts=True)
            levels.append(Level.of(grams, counts))
        return cls(levels[::-1])

    def probabilities(self, grams: Array) -> Array:
        """Of the last byte of each 5-gram ``[N] u64``, given its first four: ``[N] f64``."""
        p = np.full(len(grams), 1 / 256)
        for order, level in enumerate(self.levels, 1):
            p = level.refine(grams & np.uint64((1 << 8 * order) - 1), p)
        return p

    def bits(self, text: Array, start: int) -> float:
        """Bits that ``text[start:]`` costs, ``start >= 4``."""
        assert start >= ORDER - 1
        grams = pack(text[start - ORDER + 1 :], ORDER)
        return float(-np.log2(self.probabilities(grams)).sum())


def _merged(parts: list[tuple[Array, Array]]) -> tuple[Array, Array]:
    grams = np.concatenate([grams for grams, _ in parts])
    counts = np.concatenate([counts for _, counts in parts])
    order = np.argsort(grams, kind="stable")
    grams, counts = grams[order], counts[order]
    starts = np.flatnonzero(np.concatenate([[True], grams[1:] != grams[:-1]]))
    return grams[starts], np.add.reduceat(counts, starts)
