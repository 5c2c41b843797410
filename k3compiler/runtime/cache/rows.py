"""What running sequences hold, one row each, as columns: bookkeeping is array work.

| column | meaning |
|---|---|
| ``context`` | tokens in the caches; the live state is after exactly these |
| ``num_pages``, ``table`` | MLA pages by virtual id, ``table[row, :num_pages]``; they cover ``context`` |
| ``promised`` | pages in all that admission promised to the row's prompt |
| ``slot`` | its private KDA slot |
| ``rolled``, ``rolled_at`` | a second slot with the state at the last unit that decoding passed; 0 = none |
| ``uses`` | how often the conversation that it goes on with was found in the cache |
| ``nodes`` | the pinned path of the index; ``num_done`` of it are stored |
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from k3compiler.runtime.cache.ops import Ints
from k3compiler.runtime.cache.unit_keys import Media, Namespace

_NO_NODES = np.zeros(0, np.int64)


class SequenceRows:
    """Columns over ``num_rows`` rows; the table widens as sequences grow."""

    def __init__(self, num_rows: int) -> None:
        self.is_open: NDArray[np.bool_] = np.zeros(num_rows, np.bool_)
        self.context: Ints = np.zeros(num_rows, np.int64)
        self.num_pages: Ints = np.zeros(num_rows, np.int64)
        self.promised: Ints = np.zeros(num_rows, np.int64)
        self.slot: Ints = np.zeros(num_rows, np.int64)
        self.rolled: Ints = np.zeros(num_rows, np.int64)
        self.rolled_at: Ints = np.zeros(num_rows, np.int64)
        self.num_done: Ints = np.zeros(num_rows, np.int64)
        self.uses: Ints = np.zeros(num_rows, np.int64)
        self.table: NDArray[np.int32] = np.zeros((num_rows, 16), np.int32)
        self.nodes: list[Ints] = [_NO_NODES] * num_rows
        self.namespace: list[Namespace] = [(None, None)] * num_rows
        self.media: list[tuple[Media, ...]] = [()] * num_rows
        self._free = list(range(num_rows - 1, -1, -1))

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_open(self) -> int:
        return len(self.nodes) - len(self._free)

    def open(self) -> int:
        """A row with nothing in it."""
        row = self._free.pop()
        for column in (self.context, self.num_pages, self.promised, self.slot, self.rolled):
            column[row] = 0
        self.rolled_at[row] = self.num_done[row] = self.uses[row] = 0
        self.is_open[row] = True
        self.nodes[row], self.media[row] = _NO_NODES, ()
        return row

    def close(self, row: int) -> None:
        """Give the row back; it must hold nothing."""
        assert self.is_open[row] and not self.slot[row] and not self.rolled[row], "row holds memory"
        assert not self.num_pages[row] and not len(self.nodes[row]), "row holds pages"
        self.is_open[row] = False
        self.promised[row] = 0
        self._free.append(row)

    def widen(self, columns: int) -> None:
        """Room for ``columns`` pages per row."""
        old = self.table.shape[1]
        if columns > old:
            grown = np.zeros((len(self.table), max(columns, 2 * old)), np.int32)
            grown[:, :old] = self.table
            self.table = grown

    def pages(self, row: int) -> Ints:
        """The row's page table."""
        return self.table[row, : self.num_pages[row]].astype(np.int64)
