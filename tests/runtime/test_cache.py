"""Pools and the cache manager: random use against the integrity check."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from k3compiler.runtime.cache.block_pool import BlockPool
from k3compiler.runtime.cache.manager import CacheManager, SequenceCache

PAGE = 4


def test_pool_gives_all_or_nothing() -> None:
    pool = BlockPool(4, name="page")
    assert pool.allocate(4) is None
    assert pool.num_free == 3
    taken = pool.allocate(3)
    assert taken is not None and sorted(taken) == [1, 2, 3], "block 0 is nobody's"
    pool.check_integrity(taken)


def test_shared_blocks_are_freed_by_the_last_holder() -> None:
    pool = BlockPool(3, name="page")
    taken = pool.allocate(1)
    assert taken is not None
    pool.share(taken)
    pool.release(taken)
    assert pool.num_free == 1
    pool.release(taken)
    assert pool.num_free == 2
    with pytest.raises(AssertionError, match="released twice"):
        pool.release(taken)


def test_integrity_check_sees_a_leak() -> None:
    pool = BlockPool(3, name="page")
    pool.allocate(1)
    with pytest.raises(AssertionError, match="holders"):
        pool.check_integrity([])


def test_reservations_are_kept() -> None:
    cache = CacheManager(num_pages=7, num_slots=4, page_tokens=PAGE)
    first = cache.open(4 * PAGE)
    assert first is not None
    assert cache.open(3 * PAGE) is None, "three of six pages are not free: four are promised"
    second = cache.open(2 * PAGE)
    assert second is not None
    cache.grow(second, 2 * PAGE)
    cache.grow(first, 4 * PAGE)
    cache.check_integrity()
    assert not set(first.pages) & set(second.pages)
    assert not cache.can_ever_open(7 * PAGE)


class CacheMachine(RuleBasedStateMachine):
    """Sequences open, grow and close in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = CacheManager(num_pages=12, num_slots=4, page_tokens=PAGE)
        self.open: list[SequenceCache] = []

    @rule(tokens=st.integers(1, 50))
    def start(self, tokens: int) -> None:
        sequence = self.cache.open(tokens)
        if sequence is not None:
            self.open.append(sequence)

    @precondition(lambda self: bool(self.open))
    @rule(data=st.data(), share=st.floats(0, 1))
    def extend(self, data: st.DataObject, share: float) -> None:
        sequence = data.draw(st.sampled_from(self.open))
        before = list(sequence.pages)
        limit = sequence.max_pages * PAGE
        tokens = sequence.context_tokens + int(share * (limit - sequence.context_tokens))
        self.cache.grow(sequence, tokens)
        sequence.context_tokens = tokens
        assert sequence.pages[: len(before)] == before, "tables are only appended to"

    @precondition(lambda self: bool(self.open))
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from(self.open))
        self.open.remove(sequence)
        self.cache.close(sequence)

    @invariant()
    def sound(self) -> None:
        self.cache.check_integrity()
        held = [page for s in self.open for page in s.pages]
        assert len(set(held)) == len(held) and 0 not in held

    def teardown(self) -> None:
        for sequence in self.open:
            self.cache.close(sequence)
        self.cache.check_integrity()
        assert self.cache.pages.num_free == 11 and self.cache.slots.num_free == 3


TestCacheMachine = CacheMachine.TestCase
