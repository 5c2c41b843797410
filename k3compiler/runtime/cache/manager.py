"""Cache memory per sequence: one KDA slot and a growing table of MLA pages.

Admission reserves the pages that a sequence may need at most, so a running sequence never waits for
memory and nothing is ever preempted:

    reserved by a sequence   pages it may still take; counted, not chosen
    table of a sequence      pages it holds, in order; only ever appended to
    free and not reserved    what a new sequence may reserve

Prefix caching plugs in at :meth:`CacheManager.open`: a hit would start the table with shared pages
and the slot with a copied state.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from k3compiler.package.expr import cdiv
from k3compiler.runtime.cache.block_pool import BlockPool


@dataclass(slots=True, eq=False)
class SequenceCache:
    """What one sequence holds. ``context_tokens`` are in the caches; pages cover at least those.

    Ownership: made by :meth:`CacheManager.open`, valid until :meth:`CacheManager.close`.
    """

    slot: int
    max_pages: int
    pages: list[int] = field(default_factory=list[int])
    context_tokens: int = 0


class CacheManager:
    """Allocates slots and pages to sequences.

    Args:
        num_pages, num_slots: what the state buffers hold (``PAGES``, ``SLOTS``), trash included.
        page_tokens: tokens per page.
    """

    def __init__(self, *, num_pages: int, num_slots: int, page_tokens: int) -> None:
        self.page_tokens = page_tokens
        self.pages = BlockPool(num_pages, name="page")
        self.slots = BlockPool(num_slots, name="slot")
        self._open: list[SequenceCache] = []

    @property
    def num_reserved_pages(self) -> int:
        """Pages promised to open sequences and not yet taken."""
        return sum(s.max_pages - len(s.pages) for s in self._open)

    def can_ever_open(self, max_tokens: int) -> bool:
        """Whether a sequence of that length fits an empty cache."""
        return cdiv(max_tokens, self.page_tokens) <= self.pages.num_usable

    def open(self, max_tokens: int) -> SequenceCache | None:
        """A slot and the promise of pages for ``max_tokens``, or None where they are not free."""
        need = cdiv(max_tokens, self.page_tokens)
        if need > self.pages.num_free - self.num_reserved_pages:
            return None
        slots = self.slots.allocate(1)
        if slots is None:
            return None
        sequence = SequenceCache(slots[0], need)
        self._open.append(sequence)
        return sequence

    def grow(self, sequence: SequenceCache, num_tokens: int) -> None:
        """Take pages so that the table covers ``num_tokens`` tokens."""
        need = cdiv(num_tokens, self.page_tokens) - len(sequence.pages)
        if need <= 0:
            return
        assert len(sequence.pages) + need <= sequence.max_pages, "more pages than were promised"
        pages = self.pages.allocate(need)
        assert pages is not None, "reserved pages are not free"
        sequence.pages.extend(pages)

    def close(self, sequence: SequenceCache) -> None:
        """Give back everything that ``sequence`` holds."""
        self._open.remove(sequence)
        self.pages.release(sequence.pages)
        self.slots.release([sequence.slot])

    def check_integrity(self) -> None:
        """Assert that tables, counts and promises agree."""
        self.pages.check_integrity(page for s in self._open for page in s.pages)
        self.slots.check_integrity(s.slot for s in self._open)
        free, promised = self.pages.num_free, self.num_reserved_pages
        assert promised <= free, f"{promised} pages are promised, {free} free"
        for sequence in self._open:
            room = len(sequence.pages) * self.page_tokens
            assert sequence.context_tokens <= room, f"{sequence} has tokens outside its pages"
            assert len(sequence.pages) <= sequence.max_pages, f"{sequence} outgrew its promise"
