"""The null device's memory: one word per KDA slot and per MLA cell, reached as a kernel would.

It executes the cache's operations in order and then the step, through virtual ids and the page
tables. Fresh slots keep what was in them; a sequence without context ignores it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from k3compiler.runtime.cache.hybrid import HybridCache
from k3compiler.runtime.cache.ops import (
    CopyCells,
    CopyStates,
    DropHost,
    Ints,
    Move,
    Op,
    Restore,
    Spill,
    ZeroPages,
)
from k3compiler.runtime.cache.unit_keys import Tokens
from k3compiler.runtime.scheduler.continuous import PrefillPart
from k3compiler.runtime.scheduler.job import Job
from k3compiler.runtime.simulate import fake_model as model
from k3compiler.runtime.simulate.fake_model import VOCAB, Words, adapter_word_of

_JUNK = np.uint64(0xDEADBEEFDEADBEEF)


class FakeDevice:
    """Attributes: ``states [places] u64``, ``cells [places, page_tokens] u64``; grown as needed."""

    def __init__(self, cache: HybridCache) -> None:
        self._cache, self._page = cache, cache.shape.page_tokens
        self.states: Words = np.zeros(0, np.uint64)
        self.cells: Words = np.zeros((0, self._page), np.uint64)
        self.host: dict[int, Words] = {}

    # -- memory

    def _grow(self) -> None:
        """As much memory as the arena has ever used; what nobody wrote is junk."""
        slots, pages = len(self._cache.arena.slots.place), len(self._cache.arena.pages.place)
        slots, pages = slots - len(self.states), pages - len(self.cells)
        if slots > 0:
            self.states = np.concatenate([self.states, np.full(slots, _JUNK)])
        if pages > 0:
            self.cells = np.concatenate([self.cells, np.full((pages, self._page), _JUNK)])

    def run_ops(self) -> None:
        """Execute and clear the cache's operations."""
        self._grow()
        ops = self._cache.arena.ops
        for op in ops:
            self.run_op(op)
        ops.clear()

    def run_op(self, op: Op) -> None:
        """One operation."""
        match op:
            case Move("state", src, dst):
                self.states[dst] = self.states[src]
                self.states[src] = _JUNK
            case Move(_, src, dst):
                self.cells[dst] = self.cells[src]
                self.cells[src] = _JUNK
            case ZeroPages(pages):
                self.cells[pages] = 0
            case CopyStates(src, dst):
                self.states[dst] = self.states[src]
            case CopyCells(src, dst, count):
                self.cells[dst, :count] = self.cells[src, :count]
            case Spill("state", handle, places, _):
                self.host[handle] = self.states[places].copy()
            case Spill(_, handle, places, cells):
                self.host[handle] = self.cells[places, cells].copy()
            case Restore("state", handle, places, _):
                self.states[places] = self.host[handle]
            case Restore(_, handle, places, cells):
                self.cells[places, cells] = self.host[handle]
            case DropHost(handle):
                del self.host[handle]

    def state_of(self, slot: int) -> int:
        """The state in a slot (virtual id)."""
        return int(self.states[self._cache.arena.slots.place[slot]])

    def _set_state(self, slot: int, state: int) -> None:
        self.states[self._cache.arena.slots.place[slot]] = state

    def cells_of(self, row: int, count: int) -> Words:
        """The first ``count`` cells of a row, through its page table."""
        pages = self._cache.rows.pages(row)
        return self.cells[self._cache.arena.pages.place[pages]].reshape(-1)[:count]

    def _write_cells(self, row: int, start: int, cells: Words) -> None:
        positions = np.arange(start, start + len(cells))
        pages = self._cache.rows.table[row, positions // self._page]
        self.cells[self._cache.arena.pages.place[pages], positions % self._page] = cells

    # -- steps

    def prefill(self, part: PrefillPart) -> int | None:
        """Run a chunk; the next token where it ends the prompt."""
        job, row = part.job, part.row
        slot = int(self._cache.rows.slot[row])
        state = self.state_of(slot) if part.start > 0 else 0
        words = _words(job, job.known[part.start : part.stop], part.start)
        self._write_cells(row, part.start, model.cells_of(words, part.start))
        begin = part.start
        for position, target in sorted(part.checkpoints.items()):
            state = model.advance(state, words[begin - part.start : position - part.start])
            self._set_state(target, state)
            begin = position
        state = model.advance(state, words[begin - part.start :])
        self._set_state(slot, state)
        if not part.is_last:
            return None
        return model.choose(state, model.attend(self.cells_of(row, part.stop)))

    def decode(self, jobs: Sequence[Job], rows: Ints, starts: Ints, last_tokens: Tokens) -> Tokens:
        """One token of every row: ``[rows] i32``."""
        adapters = [0 if (a := job.namespace[1]) is None else adapter_word_of(a) for job in jobs]
        words = last_tokens.astype(np.uint64) + np.array(adapters, np.uint64)
        columns, arena = self._cache.rows, self._cache.arena
        slots = arena.slots.place[columns.slot[rows]]
        states = model.advance_each(self.states[slots], words)
        self.states[slots] = states
        pages = arena.pages.place[columns.table[rows, starts // self._page]]
        self.cells[pages, starts % self._page] = model.cells_at(words, starts)
        found = [
            model.choose(state, model.attend(self.cells_of(row, start + 1)))
            for row, start, state in zip(
                rows.tolist(), starts.tolist(), states.tolist(), strict=True
            )
        ]
        crossing = (starts + 1) % self._cache.unit == 0
        for row in rows[crossing].tolist():
            self._roll(row)
        return np.array(found, np.int32)

    def _feed(self, job: Job, row: int, position: int, token: int) -> int:
        word = _words(job, np.array([token], np.int32), position)
        slot = int(self._cache.rows.slot[row])
        state = model.advance(self.state_of(slot), word)
        self._set_state(slot, state)
        self._write_cells(row, position, model.cells_of(word, position))
        return model.choose(state, model.attend(self.cells_of(row, position + 1)))

    def _roll(self, row: int) -> None:
        """Copy the live state, which stands on a unit boundary."""
        rolled = int(self._cache.rows.rolled[row])
        if rolled:
            self._set_state(rolled, self.state_of(int(self._cache.rows.slot[row])))

    def verify(
        self, job: Job, row: int, start: int, token: int, width: int, num_right: int
    ) -> list[int]:
        """Feed a token and ``width - 1`` drafts, of which the first ``num_right`` are right.

        The state is rolled back and replayed over what was accepted; the cells of rejected drafts
        stay behind as dead rows. Returns the accepted tokens, one more than the right drafts.
        """
        slot = int(self._cache.rows.slot[row])
        before = self.state_of(slot)
        fed, outputs = [token], list[int]()
        for index in range(width):
            outputs.append(self._feed(job, row, start + index, fed[-1]))
            wrong = (outputs[-1] + 1) % VOCAB
            fed.append(outputs[-1] if index < num_right else wrong)
        num_new = min(num_right, width - 1) + 1
        self._replay(job, row, start, before, fed[:num_new])
        return outputs[:num_new]

    def _replay(self, job: Job, row: int, start: int, state: int, tokens: list[int]) -> None:
        """The commit: the state at the accepted position, from the one before the verify."""
        words = _words(job, np.array(tokens, np.int32), start)
        slot, unit = int(self._cache.rows.slot[row]), self._cache.unit
        for index in range(len(tokens)):
            state = model.advance(state, words[index : index + 1])
            if (start + index + 1) % unit == 0 and self._cache.rows.rolled[row]:
                self._set_state(int(self._cache.rows.rolled[row]), state)
        self._set_state(slot, state)


def _words(job: Job, tokens: Tokens, start: int) -> Words:
    return model.words_of(tokens, start, job.namespace[1], job.media)
