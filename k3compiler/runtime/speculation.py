"""Where drafts come from: the seam behind which a draft model sits."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Known:
    """A sequence: ``tokens`` are prompt and output so far, ``pages`` the rows of its pages.

    The target has seen every token but the last.
    """

    tokens: Sequence[int]
    pages: Sequence[int]


class Drafter(ABC):
    """Proposes how sequences may go on. Proposals cost time when wrong, never correctness."""

    @property
    def most(self) -> int | None:
        """Tokens that it proposes at once, at most; None is any number."""
        return None

    @abstractmethod
    def propose(self, known: Sequence[Known], most: Sequence[int]) -> Sequence[Sequence[int]]:
        """For every sequence at most so many tokens (one or more are asked for) that may follow."""

    def observe(
        self, taps: NDArray[np.float32], pages: NDArray[np.int64], positions: NDArray[np.int64]
    ) -> None:
        """What the target computed in a launch, for drafts that read it.

        Shapes: ``taps [T, layers, hidden] f32``, the running sums after the layers that the package
        taps; ``pages [T]`` the rows of the pages that the tokens lie in; ``positions [T]``.
        """
        del taps, pages, positions  # most drafters read the tokens only


class LookupDrafter(Drafter):
    """Proposes what followed the last occurrence of the sequence's own last tokens.

    Good where answers quote their prompt; it needs no weights. Source: prompt lookup decoding.

    Args:
        longest, shortest: lengths of the endings that are looked for, longest first.
    """

    def __init__(self, *, longest: int = 4, shortest: int = 2) -> None:
        assert 0 < shortest <= longest, "endings have at least one token"
        self._lengths = range(longest, shortest - 1, -1)

    def propose(self, known: Sequence[Known], most: Sequence[int]) -> list[list[int]]:
        return [self._follow(one.tokens, n) for one, n in zip(known, most, strict=True)]

    def _follow(self, tokens: Sequence[int], most: int) -> list[int]:
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
