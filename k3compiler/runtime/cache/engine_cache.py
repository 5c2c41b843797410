"""The hybrid cache over the bytes of a device.

One arena: slots grow from its low end, pages from its high end, and what is in the way is moved
(``memory="unified"``); or, to compare, a fixed number of slots and the rest pages (``"static"``). Rows
are what kernels see of places (``cache/layout.py``); a row holds until the next operation is run.

:meth:`EngineCache.open` serves callers who drive the executor themselves; the scheduler works on
``hybrid`` directly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from k3compiler.package.expr import cdiv
from k3compiler.runtime.cache.hybrid import NO_HIT, CacheShape, HybridCache, Observer
from k3compiler.runtime.cache.ops import Ints
from k3compiler.runtime.cache.state_memory import StateMemory

Memory = Literal["unified", "static"]


class SequenceCache:
    """What a sequence opened by hand holds, as rows of the buffers; pages cover ``context_tokens``.

    Ownership: made by :meth:`EngineCache.open`, valid until :meth:`EngineCache.close`. ``slot`` and
    ``pages`` are looked up when asked for, as others may make the cache move them.
    """

    def __init__(self, cache: EngineCache, row: int, max_pages: int) -> None:
        self._cache, self.row, self.max_pages = cache, row, max_pages
        self.context_tokens = 0

    @property
    def slot(self) -> int:
        return self._cache.slot_row(int(self._cache.hybrid.rows.slot[self.row]))

    @property
    def pages(self) -> list[int]:
        return self._cache.page_rows(self.row).tolist()


@dataclass(frozen=True, slots=True)
class PoolUse:
    """Items of a kind. ``num_free``: not held by any running sequence (cached prefixes give way)."""

    num_usable: int
    num_free: int


@dataclass(frozen=True, slots=True)
class CacheUse:
    """Bytes of the arena, cached prefixes included.

    ``kv_limit`` and ``state_limit``: what a kind can have at most (the arena, or its part of it).
    """

    kv: int
    kv_limit: int
    state: int
    state_limit: int
    arena: int


class EngineCache:
    """See the module.

    Args:
        num_sequences: that run at once.
        static_slots: of the static split; None is one arena for all.
        unit: tokens per match unit.
        host_bytes: of the lower tier that evicted prefixes are spilled to.
        num_drafts: drafts that a verify has at most; ``memory`` has scratch slots for
            ``num_sequences * num_drafts`` states.
    """

    def __init__(
        self,
        memory: StateMemory,
        *,
        num_sequences: int,
        page_tokens: int,
        unit: int,
        prefix_cache: bool,
        static_slots: int | None = None,
        num_drafts: int = 0,
        host_bytes: int = 0,
        observe: Observer | None = None,
    ) -> None:
        layout = memory.map.layout
        assert memory.map.num_scratch == num_sequences * num_drafts, "scratch slots for every draft"
        shape = CacheShape(
            memory.map.arena_bytes,
            layout.slot_bytes,
            layout.token_bytes,
            num_sequences,
            page_tokens=page_tokens,
            unit=unit,
            static_slots=static_slots,
            host_bytes=host_bytes,
            prefix_cache=prefix_cache,
        )
        self.hybrid = HybridCache(shape, observe)
        self.memory, self.page_tokens, self._num_drafts = memory, page_tokens, num_drafts
        self._open: list[SequenceCache] = []

    def run_ops(self) -> None:
        """Execute what the cache asked of the memory."""
        self.memory.run(self.hybrid.arena.ops)
        self.hybrid.arena.ops.clear()

    @property
    def pages(self) -> PoolUse:
        """``num_usable``: of a sequence that has the whole cache."""
        arena = self.hybrid.arena
        usable = arena.pages.limit
        if usable is None:
            room = arena.num_bytes - arena.slots.item_bytes
            usable = max(0, room) // arena.pages.item_bytes
        return PoolUse(usable, usable - int(np.count_nonzero(self.hybrid.locked)))

    @property
    def slots(self) -> PoolUse:
        """Of running sequences."""
        rows = self.hybrid.rows
        return PoolUse(rows.num_free + rows.num_open, rows.num_free)

    @property
    def use(self) -> CacheUse:
        """How full the arena is."""
        arena = self.hybrid.arena
        limits = [
            arena.num_bytes if side.limit is None else side.limit * side.item_bytes
            for side in (arena.pages, arena.slots)
        ]
        return CacheUse(
            arena.pages.live_bytes, limits[0], arena.slots.live_bytes, limits[1], arena.num_bytes
        )

    def slot_row(self, slot: int) -> int:
        """The buffers' row of a slot."""
        return int(self.memory.slot_rows(self.hybrid.arena.slots.place[[slot]])[0])

    def page_rows(self, row: int) -> Ints:
        """The buffers' rows of a sequence's pages."""
        return self.memory.page_rows(self.hybrid.arena.pages.place[self.hybrid.rows.pages(row)])

    def page_tables(self, rows: Ints, columns: int) -> NDArray[np.int32]:
        """The buffers' rows of many sequences' pages, 0 past the last. Shapes: ``[n, columns]``."""
        held = self.hybrid.rows.num_pages[rows]
        width = min(columns, int(held.max(initial=0)))
        places = self.hybrid.arena.pages.place[self.hybrid.rows.table[rows, :width]]
        tables = np.zeros((len(rows), columns), np.int32)
        own = np.arange(width) < held[:, None]
        tables[:, :width] = np.where(own, self.memory.page_rows(places), 0)
        return tables

    def slot_rows(self, rows: Ints) -> Ints:
        """The buffers' rows of the live states of sequences."""
        return self.memory.slot_rows(self.hybrid.arena.slots.place[self.hybrid.rows.slot[rows]])

    def _rolled_rows(self, rows: Ints) -> Ints:
        return self.memory.slot_rows(self.hybrid.arena.slots.place[self.hybrid.rows.rolled[rows]])

    def roll_states(self, rows: Ints) -> None:
        """After a decode: where a row stands on a unit boundary, keep its state."""
        columns = self.hybrid.rows
        on_boundary: NDArray[np.bool_] = (columns.context[rows] + 1) % self.hybrid.unit == 0
        chosen = rows[on_boundary & (columns.rolled[rows] > 0)]
        self.memory.copy_slots(self.slot_rows(chosen), self._rolled_rows(chosen))

    def scratch_row(self, row: int, index: int) -> int:
        """The buffers' row for the state after a verify's ``index``-th token; outside the arena."""
        return 1 + row * self._num_drafts + index

    def commit(self, row: int, num_new: int, num_fed: int) -> None:
        """After a verify: the live state is the one after ``num_new`` of ``num_fed`` tokens.

        Where a unit boundary was passed, its state goes to the row's rolled slot.
        """
        columns, here = self.hybrid.rows, np.array([row])
        start, live = int(columns.context[row]), self.slot_rows(here)
        boundary = (start + num_new) // self.hybrid.unit * self.hybrid.unit
        if boundary > start and columns.rolled[row]:
            passed = boundary - start
            source = live if passed == num_fed else self._scratch_rows(row, passed - 1)
            self.memory.copy_slots(source, self._rolled_rows(here))
        if num_new < num_fed:
            self.memory.copy_slots(self._scratch_rows(row, num_new - 1), live)

    def _scratch_rows(self, row: int, index: int) -> Ints:
        return np.array([self.scratch_row(row, index)])

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
        sequence = SequenceCache(self, row, cdiv(max_tokens, self.page_tokens))
        self._open.append(sequence)
        self.run_ops()
        return sequence

    def grow(self, sequence: SequenceCache, num_tokens: int) -> None:
        """Take pages so that the table covers ``num_tokens`` tokens."""
        need = cdiv(num_tokens, self.page_tokens)
        assert need <= sequence.max_pages, "more pages than were promised"
        grown = self.hybrid.grow(sequence.row, num_tokens)
        assert grown, "promised pages are not there"
        self.run_ops()

    def close(self, sequence: SequenceCache) -> None:
        """Give back everything that ``sequence`` holds."""
        self._open.remove(sequence)
        self.hybrid.close(sequence.row, None)

    def reset_prefixes(self) -> None:
        """Forget every cached prefix."""
        self.hybrid.drop_all()
        self.run_ops()

    def check_integrity(self) -> None:
        """Assert every invariant of the cache (A17), and of the sequences opened here."""
        self.hybrid.check_integrity()
        for sequence in self._open:
            room = len(sequence.pages) * self.page_tokens
            assert sequence.context_tokens <= room, f"{sequence} has tokens outside its pages"
