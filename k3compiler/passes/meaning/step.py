"""One step's metadata as the ops' meanings read it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from k3compiler.package.expr import Expr, evaluate

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Step:
    """The arrays of ``docs/package.md`` (step inputs) by name, and the rank they run on."""

    arrays: Mapping[str, Array]
    rank: int = 0

    def __getitem__(self, name: str) -> Array:
        return self.arrays[name]

    def bound(self, expr: Expr | None) -> int:
        """The value of an expression in ``rank`` (0 for none)."""
        return 0 if expr is None else evaluate(expr, {"rank": self.rank})

    @property
    def num_sequences(self) -> int:
        return len(self.arrays["seq_ctx"])

    def rows(self, seq: int) -> slice:
        """A sequence's token rows in this step."""
        start = self.arrays["seq_start"]
        return slice(int(start[seq]), int(start[seq + 1]))

    def chunks(self, seq: int) -> Iterator[tuple[slice, int | None]]:
        """A sequence's rows cut where states are kept: ``(rows, slot of the checkpoint)``."""
        if "chunk_seq" not in self.arrays:
            yield self.rows(seq), None
            return
        for n in np.flatnonzero(self.arrays["chunk_seq"] == seq):
            begin, end = (int(self.arrays[f"chunk_{edge}"][n]) for edge in ("start", "end"))
            slot = int(self.arrays["chunk_ckpt"][n])
            yield slice(begin, end), None if slot < 0 else slot

    def initial(self, state: Array, seq: int) -> Array:
        """What a sequence starts from: its slot, or zeros without a context."""
        slot = state[int(self.arrays["seq_slot"][seq])]
        return slot.copy() if self.arrays["seq_ctx"][seq] else np.zeros_like(slot)

    def cache_places(
        self, seq: int, first: int, last: int, page_tokens: int
    ) -> tuple[Array, Array]:
        """Page and row in the page of a sequence's absolute positions ``first .. last``."""
        position = np.arange(first, last)
        return self.arrays["page_table"][seq, position // page_tokens], position % page_tokens

    def context(self, cache: Array, seq: int) -> Array:
        """A sequence's cached rows, its new tokens' included: ``[ctx + new, row]``."""
        count = int(self.arrays["seq_ctx"][seq]) + self.rows(seq).stop - self.rows(seq).start
        return cache[self.cache_places(seq, 0, count, cache.shape[1])]
