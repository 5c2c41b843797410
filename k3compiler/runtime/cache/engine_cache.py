"""The hybrid cache over an executor's state buffers.

The buffers have fixed sizes, so the arena is split (``static_slots``) and nothing is ever moved. Rows
of the buffers are what kernels see: place + 1.

:meth:`EngineCache.open` serves callers who drive the executor themselves; the scheduler works on
``hybrid`` directly.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from k3compiler.package.expr import cdiv
from k3compiler.runtime.cache.hybrid import NO_HIT, CacheShape, HybridCache, Observer
from k3compiler.runtime.cache.ops import Ints
from k3compiler.runtime.cache.state_memory import FIRST_ROW, StateMemory


@dataclass(slots=True, eq=False)
class SequenceCache:
    """What a sequence opened by hand holds, as rows of the buffers; pages cover ``context_tokens``.

    Ownership: made by :meth:`EngineCache.open`, valid until :meth:`EngineCache.close`.
    """

    slot: int
    max_pages: int
    pages: list[int] = field(default_factory=list[int])
    context_tokens: int = 0


@dataclass(frozen=True, slots=True)
class PoolUse:
    """``num_free``: not held by any running sequence (cached prefixes give way)."""

    num_usable: int
    num_free: int


class EngineCache:
    """See the module.

    Args:
        num_pages, num_slots: rows of the buffers, row 0 included.
        num_sequences: that run at once; slots beyond those are for checkpoints.
        unit: tokens per match unit.
        host_bytes: of the lower tier that evicted prefixes are spilled to.
        num_drafts: drafts that a verify has at most; the buffers have ``num_sequences * num_drafts``
            rows for their states after those of ``num_slots``.
    """

    def __init__(
        self,
        memory: StateMemory,
        *,
        num_pages: int,
        num_slots: int,
        num_sequences: int,
        page_tokens: int,
        unit: int,
        prefix_cache: bool,
        num_drafts: int = 0,
        host_bytes: int = 0,
        observe: Observer | None = None,
    ) -> None:
        slots, page_bytes = num_slots - 1, page_tokens * memory.token_bytes
        shape = CacheShape(
            slots * memory.state_bytes + (num_pages - 1) * page_bytes,
            memory.state_bytes,
            memory.token_bytes,
            num_sequences,
            page_tokens=page_tokens,
            unit=unit,
            static_slots=slots,
            host_bytes=host_bytes,
            prefix_cache=prefix_cache,
        )
        self.hybrid = HybridCache(shape, observe)
        self.memory, self.page_tokens, self._num_drafts = memory, page_tokens, num_drafts
        self._open: dict[SequenceCache, int] = {}

    def run_ops(self) -> None:
        """Execute what the cache asked of the memory."""
        self.memory.run(self.hybrid.arena.ops)
        self.hybrid.arena.ops.clear()

    @property
    def pages(self) -> PoolUse:
        usable = self.hybrid.arena.pages.limit
        assert usable is not None, "the arena of an engine is split"
        return PoolUse(usable, usable - int(np.count_nonzero(self.hybrid.locked)))

    @property
    def slots(self) -> PoolUse:
        """Of running sequences."""
        rows = self.hybrid.rows
        return PoolUse(rows.num_free + rows.num_open, rows.num_free)

    def slot_row(self, slot: int) -> int:
        """The buffers' row of a slot."""
        return int(self.hybrid.arena.slots.place[slot]) + FIRST_ROW

    def page_rows(self, row: int) -> Ints:
        """The buffers' rows of a sequence's pages."""
        return self.hybrid.arena.pages.place[self.hybrid.rows.pages(row)] + FIRST_ROW

    def page_tables(self, rows: Ints, columns: int) -> NDArray[np.int32]:
        """The buffers' rows of many sequences' pages, 0 past the last. Shapes: ``[n, columns]``."""
        held = self.hybrid.rows.num_pages[rows]
        width = min(columns, int(held.max(initial=0)))
        places = self.hybrid.arena.pages.place[self.hybrid.rows.table[rows, :width]]
        tables = np.zeros((len(rows), columns), np.int32)
        tables[:, :width] = np.where(np.arange(width) < held[:, None], places + FIRST_ROW, 0)
        return tables

    def slot_rows(self, rows: Ints) -> Ints:
        """The buffers' rows of the live states of sequences."""
        return self.hybrid.arena.slots.place[self.hybrid.rows.slot[rows]] + FIRST_ROW

    def roll_states(self, rows: Ints) -> None:
        """After a decode: where a row stands on a unit boundary, keep its state."""
        columns, slots = self.hybrid.rows, self.hybrid.arena.slots
        on_boundary: NDArray[np.bool_] = (columns.context[rows] + 1) % self.hybrid.unit == 0
        chosen = rows[on_boundary & (columns.rolled[rows] > 0)]
        self.memory.roll(slots.place[columns.slot[chosen]], slots.place[columns.rolled[chosen]])

    def scratch_row(self, row: int, index: int) -> int:
        """The buffers' row for the state after a verify's ``index``-th token; past the arena's."""
        slots = self.hybrid.arena.slots.limit
        assert slots is not None, "the arena of an engine is split"
        return FIRST_ROW + slots + row * self._num_drafts + index

    def commit(self, row: int, num_new: int, num_fed: int) -> None:
        """After a verify: the live state is the one after ``num_new`` of ``num_fed`` tokens.

        Where a unit boundary was passed, its state goes to the row's rolled slot.
        """
        columns, slots = self.hybrid.rows, self.hybrid.arena.slots
        start, live = int(columns.context[row]), slots.place[columns.slot[[row]]]
        boundary = (start + num_new) // self.hybrid.unit * self.hybrid.unit
        if boundary > start and columns.rolled[row]:
            passed = boundary - start
            source = live if passed == num_fed else self._scratch_place(row, passed - 1)
            self.memory.roll(source, slots.place[columns.rolled[[row]]])
        if num_new < num_fed:
            self.memory.roll(self._scratch_place(row, num_new - 1), live)

    def _scratch_place(self, row: int, index: int) -> Ints:
        return np.array([self.scratch_row(row, index) - FIRST_ROW])

    # -- sequences of callers who drive the executor themselves

    def can_ever_open(self, max_tokens: int) -> bool:
        """Whether a sequence of this length fits an empty cache."""
        return cdiv(max_tokens, self.page_tokens) <= self.pages.num_usable

    def open(self, max_tokens: int) -> SequenceCache | None:
        """A slot and the promise of pages for ``max_tokens``, or None where they are not free.

        Ownership: the caller's until :meth:`close`; it neither reads nor feeds the prefix index.
        """
        row = self.hybrid.admit(NO_HIT, max_tokens)
        if row is None:
            return None
        slot = self.slot_row(int(self.hybrid.rows.slot[row]))
        sequence = SequenceCache(slot, cdiv(max_tokens, self.page_tokens))
        self._open[sequence] = row
        self.run_ops()
        return sequence

    def grow(self, sequence: SequenceCache, num_tokens: int) -> None:
        """Take pages so that the table covers ``num_tokens`` tokens."""
        need = cdiv(num_tokens, self.page_tokens)
        assert need <= sequence.max_pages, "more pages than were promised"
        row = self._open[sequence]
        grown = self.hybrid.grow(row, num_tokens)
        assert grown, "promised pages are not there"
        self.run_ops()
        sequence.pages[:] = self.page_rows(row).tolist()

    def close(self, sequence: SequenceCache) -> None:
        """Give back everything that ``sequence`` holds."""
        self.hybrid.close(self._open.pop(sequence), None)

    def reset_prefixes(self) -> None:
        """Forget every cached prefix."""
        self.hybrid.drop_all()
        self.run_ops()

    def check_integrity(self) -> None:
        """Assert every invariant of the cache (A17), and of the sequences opened here."""
        self.hybrid.check_integrity()
        for sequence, row in self._open.items():
            assert sequence.pages == self.page_rows(row).tolist(), "a table differs from its row"
            room = len(sequence.pages) * self.page_tokens
            assert sequence.context_tokens <= room, f"{sequence} has tokens outside its pages"
