"""The arena: ends, holes, the fewest moves, pins, the static split, 64-bit addresses."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from k3compiler.runtime.cache.arena import Arena
from k3compiler.runtime.cache.ops import Move, ZeroPages

STATE, PAGE = 10, 3


def make(num_bytes: int = 100, static_slots: int | None = None) -> Arena:
    return Arena(num_bytes, state_bytes=STATE, page_bytes=PAGE, static_slots=static_slots)


def test_slots_grow_up_and_pages_grow_down() -> None:
    arena = make()
    slots, pages = arena.allocate(arena.slots, 2), arena.allocate(arena.pages, 3)
    assert slots is not None and pages is not None
    assert arena.addresses(arena.slots, slots).tolist() == [0, 10]
    assert arena.addresses(arena.pages, pages).tolist() == [97, 94, 91]
    assert 0 not in slots and 0 not in pages, "id 0 is nobody's"
    assert arena.gap_bytes == 100 - 20 - 9
    assert arena.allocatable(arena.slots) == 7 and arena.allocatable(arena.pages) == 23


def test_addresses_have_64_bits() -> None:
    arena = Arena(2**42, state_bytes=2**35, page_bytes=2**30)
    slots = arena.allocate(arena.slots, 100)
    assert slots is not None
    assert arena.addresses(arena.slots, slots)[-1] == 99 * 2**35
    assert arena.addresses(arena.slots, slots).dtype == np.int64


def test_holes_are_filled_from_the_own_end_without_a_move() -> None:
    arena = make()
    slots = arena.allocate(arena.slots, 5)
    assert slots is not None
    arena.free(arena.slots, slots[[3, 1]])
    again = arena.allocate(arena.slots, 1)
    assert again is not None and arena.slots.place[again[0]] == 1
    assert not any(isinstance(op, Move) for op in arena.ops)


def test_frontier_falls_over_holes_at_its_edge() -> None:
    arena = make()
    slots = arena.allocate(arena.slots, 4)
    assert slots is not None
    arena.free(arena.slots, slots[1:3])
    assert arena.slots.frontier == 4 and len(arena.slots.holes) == 2
    arena.free(arena.slots, slots[3:])
    assert arena.slots.frontier == 1 and not len(arena.slots.holes)
    arena.check_integrity()


def test_compaction_moves_only_what_is_in_the_way() -> None:
    """Five of nine slots are holes; one page more needs one slot to move, not four."""
    arena = make()
    slots = arena.allocate(arena.slots, 9)
    assert slots is not None
    assert arena.allocate(arena.pages, 3) is not None
    arena.free(arena.slots, slots[[0, 1, 2, 4, 6]])
    arena.ops.clear()
    assert arena.allocate(arena.pages, 1) is not None
    moves = [op for op in arena.ops if isinstance(op, Move)]
    assert [(m.kind, m.src.tolist(), m.dst.tolist()) for m in moves] == [("state", [8], [0])]
    assert arena.slots.place[slots[8]] == 0 and arena.num_moved == 1
    arena.check_integrity()


def test_what_is_pinned_does_not_move() -> None:
    arena = make()
    slots = arena.allocate(arena.slots, 9)
    assert slots is not None and arena.allocate(arena.pages, 3) is not None
    arena.free(arena.slots, slots[:5])
    arena.slots.pinned[slots[8]] = True
    assert arena.allocate(arena.pages, 1) is None
    assert arena.allocatable(arena.pages) == 0 and arena.fits(4, 4), "two different numbers"
    arena.slots.pinned[slots[8]] = False
    assert arena.allocate(arena.pages, 1) is not None


def test_nothing_moves_while_a_step_is_in_flight() -> None:
    arena = make()
    slots = arena.allocate(arena.slots, 9)
    assert slots is not None and arena.allocate(arena.pages, 3) is not None
    arena.free(arena.slots, slots[:5])
    arena.is_frozen = True
    assert arena.allocate(arena.pages, 1) is None and arena.num_moved == 0
    arena.is_frozen = False
    assert arena.allocate(arena.pages, 1) is not None and arena.num_moved > 0


def test_static_split_does_not_share() -> None:
    arena = make(100, static_slots=4)
    assert arena.allocate(arena.slots, 5) is None
    assert arena.allocate(arena.slots, 4) is not None
    assert arena.allocate(arena.pages, 21) is None
    assert arena.allocate(arena.pages, 20) is not None
    assert not arena.fits(5, 0) and arena.fits(4, 20)


def test_pages_are_zeroed_when_handed_out() -> None:
    arena = make()
    pages = arena.allocate(arena.pages, 2)
    assert pages is not None
    op = arena.ops[-1]
    assert isinstance(op, ZeroPages) and op.pages.tolist() == arena.pages.place[pages].tolist()


def test_freeing_twice_is_a_bug() -> None:
    arena = make()
    slots = arena.allocate(arena.slots, 2)
    assert slots is not None
    arena.free(arena.slots, slots)
    with pytest.raises(AssertionError, match="twice"):
        arena.free(arena.slots, slots)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 6), st.randoms()), max_size=40))
def test_contents_survive_any_order(actions: list[tuple[bool, int, object]]) -> None:
    """Ids keep their contents through allocations, frees and the moves those cause."""
    import random

    arena = make(120)
    memory: dict[tuple[str, int], int] = {}
    for is_slots, count, _ in actions:
        side = arena.slots if is_slots else arena.pages
        ids = arena.allocate(side, count)
        if ids is None:
            assert not arena.fits(
                arena.slots.num_live + count * is_slots,
                arena.pages.num_live + count * (not is_slots),
            ), "it would have fitted a compacted arena"
            live = np.flatnonzero(side.place[: side.num_ids] >= 0)
            some = np.array(random.Random(count).sample(live.tolist(), min(count, len(live))))
            arena.free(side, some.astype(np.int64))
        for op in arena.ops:
            if isinstance(op, Move):
                moved = [memory.pop((op.kind, int(p))) for p in op.src]
                memory.update({(op.kind, int(p)): v for p, v in zip(op.dst, moved, strict=True)})
        arena.ops.clear()
        for item in [] if ids is None else ids.tolist():
            memory[side.kind, int(side.place[item])] = item
        for one in (arena.slots, arena.pages):
            live = np.flatnonzero(one.place[: one.num_ids] >= 0)
            assert all(memory[one.kind, int(one.place[i])] == i for i in live.tolist())
        arena.check_integrity()
