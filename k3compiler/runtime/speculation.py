"""Where drafts come from: the seam behind which a draft model sits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np


class Drafter(Protocol):
    """Proposes how a sequence may go on. Proposals cost time when wrong, never correctness."""

    def propose(self, tokens: Sequence[int], most: int) -> Sequence[int]:
        """At most ``most`` tokens that may follow ``tokens`` (prompt and output so far)."""
        ...


class LookupDrafter:
    """Proposes what followed the last occurrence of the sequence's own last tokens.

    Good where answers quote their prompt; it needs no weights. Source: prompt lookup decoding.

    Args:
        longest, shortest: lengths of the endings that are looked for, longest first.
    """

    def __init__(self, *, longest: int = 4, shortest: int = 2) -> None:
        assert 0 < shortest <= longest, "endings have at least one token"
        self._lengths = range(longest, shortest - 1, -1)

    def propose(self, tokens: Sequence[int], most: int) -> Sequence[int]:
        known = np.asarray(tokens, np.int64)
        for length in self._lengths:
            if len(known) <= length:
                continue
            windows = np.lib.stride_tricks.sliding_window_view(known[:-1], length)
            found = np.flatnonzero((windows == known[-length:]).all(axis=1))
            if len(found):
                begin = int(found[-1]) + length
                return known[begin : begin + most].tolist()
        return []
