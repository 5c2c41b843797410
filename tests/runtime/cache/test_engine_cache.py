"""The cache on state buffers: sequences opened by hand, promises, operations on memory."""

from __future__ import annotations

from math import lcm
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from numpy.typing import NDArray

from k3compiler.package.pitches import pitch_of
from k3compiler.runtime.cache.arena import Arena
from k3compiler.runtime.cache.engine_cache import EngineCache, SequenceCache
from k3compiler.runtime.cache.layout import CacheLayout, CacheMap
from k3compiler.runtime.cache.ops import (
    CopyCells,
    CopyStates,
    DropHost,
    Ints,
    Move,
    Restore,
    Spill,
    ZeroPages,
)
from k3compiler.runtime.cache.state_memory import StateMemory
from k3compiler.runtime.device.base import TensorRef
from k3compiler.runtime.device.cpu import host_bytes
from k3compiler.runtime.device.null import NullDevice
from k3compiler.runtime.state import StateRecord

PAGE = 4
RECORDS = {
    "kda_state.0": StateRecord("kda_state.0", "f32", ("SLOTS", 2, 3, 3)),
    "kda_conv.0": StateRecord("kda_conv.0", "f32", ("SLOTS", 3, 5)),
    "mla_cache.1": StateRecord("mla_cache.1", "f32", ("PAGES", PAGE, 6)),
    "mla_cache.2": StateRecord("mla_cache.2", "f32", ("PAGES", PAGE, 6)),
}
LAYOUT = CacheLayout.of(RECORDS, PAGE)


class TorchDevice(NullDevice):
    """Host memory seen through torch, as a GPU's is."""

    def tensor(self, ref: TensorRef) -> Any:
        torch = pytest.importorskip("torch", reason="torch is not installed")
        return torch.from_numpy(super().tensor(ref))


def kernel_view(data: NDArray[np.uint8], where: CacheMap, name: str) -> NDArray[np.float32]:
    """A state as a kernel reaches it: a pointer, rows, and the pitch between items."""
    inner = tuple(int(n) for n in RECORDS[name].shape[1:])
    part = np.empty(inner, np.float32)
    item = where.symbols[pitch_of(name)] * part.strides[0]
    rows = where.num_page_rows if name.startswith("mla") else where.num_slot_rows
    return np.ndarray(
        (rows, *inner), np.float32, data.data, where.state_at(name), (item, *part.strides)
    )


def make_memory(
    num_pages: int, num_slots: int, device: NullDevice | None = None, *, num_scratch: int = 0
) -> tuple[StateMemory, dict[str, NDArray[np.float32]]]:
    """An arena of so many bytes, and its views by name."""
    device = device or NullDevice()
    num_bytes = num_slots * LAYOUT.slot_bytes + num_pages * LAYOUT.page_bytes
    where = CacheMap(LAYOUT, num_bytes, num_scratch)
    buffer = device.allocate(where.num_bytes)
    views = {name: kernel_view(host_bytes(buffer), where, name) for name in RECORDS}
    return StateMemory(device, buffer, where), views


def make(
    num_pages: int, num_slots: int, *, is_static: bool = True, num_sequences: int | None = None
) -> tuple[EngineCache, dict[str, NDArray[np.float32]]]:
    """Over ``num_pages`` and ``num_slots`` that can be used."""
    memory, views = make_memory(num_pages, num_slots)
    cache = EngineCache(
        memory,
        num_sequences=num_sequences or num_slots,
        page_tokens=PAGE,
        unit=PAGE,
        prefix_cache=True,
        static_slots=num_slots if is_static else None,
    )
    return cache, views


def test_layout() -> None:
    """Rows of every part divide the items, parts are aligned and apart, ends meet."""
    assert LAYOUT.slot_bytes % lcm(64, 9 * 4, 5 * 4) == 0 and LAYOUT.slot_bytes >= 18 * 4 + 15 * 4
    assert (LAYOUT.page_bytes, LAYOUT.token_bytes, LAYOUT.cell_bytes) == (384, 96, 24)
    assert LAYOUT.offsets == {
        "kda_state.0": 0,
        "kda_conv.0": 128,
        "mla_cache.1": 0,
        "mla_cache.2": 192,
    }
    where = CacheMap(LAYOUT, 3 * LAYOUT.slot_bytes + 64, num_scratch=2)
    memory = StateMemory(NullDevice(), NullDevice().allocate(where.num_bytes), where)
    arena = Arena(where.arena_bytes, state_bytes=LAYOUT.slot_bytes, page_bytes=LAYOUT.page_bytes)
    slots, pages = arena.slots.take(2), arena.pages.take(2)
    slot_at = where.slots_at + memory.slot_rows(arena.slots.place[slots]) * LAYOUT.slot_bytes
    assert (slot_at == where.arena_at + arena.addresses(arena.slots, slots)).all()
    page_at = memory.page_rows(arena.pages.place[pages]) * LAYOUT.page_bytes
    assert (page_at == where.arena_at + arena.addresses(arena.pages, pages)).all()
    assert page_at[0] + LAYOUT.page_bytes == where.num_bytes
    assert where.slots_at >= LAYOUT.page_bytes, "the trash page is nobody else's"
    empty = CacheLayout.of({}, PAGE)
    assert empty.slot_bytes > 0 and empty.page_bytes > 0 and empty.cell_bytes == 0


def test_promises_are_kept() -> None:
    cache = make(6, 3)[0]
    first = cache.open(4 * PAGE)
    assert first is not None
    assert cache.open(3 * PAGE) is None, "three of six pages are not free: four are promised"
    second = cache.open(2 * PAGE)
    assert second is not None
    cache.grow(second, 2 * PAGE)
    cache.grow(first, 4 * PAGE)
    cache.check_integrity()
    assert not set(first.pages) & set(second.pages)
    assert 0 not in first.pages + second.pages and 0 not in (first.slot, second.slot)
    assert cache.can_ever_open(6 * PAGE) and not cache.can_ever_open(7 * PAGE)
    with pytest.raises(AssertionError, match="promised"):
        cache.grow(second, 3 * PAGE)


def ints(*values: int) -> Ints:
    return np.array(values, np.int64)


@pytest.mark.parametrize("device", [NullDevice, TorchDevice])
def test_operations_reach_every_layer(device: type[NullDevice]) -> None:
    """Every operation, on the places' rows; row 0 is nobody's and stays."""
    memory, views = make_memory(5, 4, device())
    slot = memory.slot_rows(np.arange(4)).tolist()
    page = memory.page_rows(np.arange(5)).tolist()
    for place in range(5):
        for name, view in views.items():
            if name.startswith("mla"):
                view[page[place]] = place + 1
            elif place < 4:
                view[slot[place]] = place + 1
    nothing = ints()
    memory.run([CopyStates(ints(0, 1), ints(2, 3)), ZeroPages(ints(4)), CopyCells(1, 4, 3)])
    memory.run(
        [Spill("state", 7, ints(1), nothing), Spill("page", 8, ints(1, 1, 2), ints(2, 3, 0))]
    )
    memory.run([Move("state", ints(0), ints(1)), Move("page", ints(0), ints(1))])
    memory.run([Restore("state", 7, ints(3), nothing)])
    for name in ("kda_state.0", "kda_conv.0"):
        assert [views[name][row].flat[-1] for row in slot] == [1, 1, 1, 2]
        assert not views[name][0].any()
    for name in ("mla_cache.1", "mla_cache.2"):
        view = views[name]
        assert view[page[4], :, 5].tolist() == [2, 2, 2, 0] and (view[page[1]] == 1).all()
    memory.run([Restore("page", 8, ints(4, 4, 0), ints(0, 1, 3)), DropHost(7), DropHost(8)])
    for name in ("mla_cache.1", "mla_cache.2"):
        view = views[name]
        assert view[page[4], :, 0].tolist() == [2, 2, 2, 0]
        assert view[page[0], :, 5].tolist() == [1, 1, 1, 3] and not view[0].any()
    assert not memory._host


class CacheMachine(RuleBasedStateMachine):
    """Sequences open, grow and close in any order; what they wrote stays theirs."""

    is_static = True

    def __init__(self) -> None:
        super().__init__()
        self.cache, self.views = make(11, 3, is_static=self.is_static)
        self.open: list[tuple[SequenceCache, int]] = []
        self.tag = 0

    def mark(self, sequence: SequenceCache, tag: int, pages: list[int]) -> None:
        """Write as the kernels do, where new pages must be zero."""
        for name, view in self.views.items():
            if not name.startswith("mla"):
                view[sequence.slot] = tag
            for page in pages if name.startswith("mla") else []:
                assert not view[page].any(), "a page that was handed out reads as zero"
                view[page] = tag

    @rule(tokens=st.integers(1, 50))
    def begin(self, tokens: int) -> None:
        sequence = self.cache.open(tokens)
        if sequence is not None:
            self.tag += 1
            self.open.append((sequence, self.tag))
            self.mark(sequence, self.tag, [])

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def extend(self, data: st.DataObject) -> None:
        sequence, tag = data.draw(st.sampled_from(self.open))
        most = sequence.max_pages * PAGE
        tokens = data.draw(st.integers(sequence.context_tokens, most))
        before = len(sequence.pages)
        self.cache.grow(sequence, tokens)
        sequence.context_tokens = tokens
        self.mark(sequence, tag, sequence.pages[before:])

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        chosen = data.draw(st.sampled_from(self.open))
        self.open.remove(chosen)
        self.cache.close(chosen[0])

    @invariant()
    def is_consistent(self) -> None:
        self.cache.check_integrity()
        held = [page for sequence, _ in self.open for page in sequence.pages]
        assert len(held) == len(set(held)) and 0 not in held
        assert self.cache.slots.num_free == 3 - len(self.open)
        for sequence, tag in self.open:
            for name, view in self.views.items():
                rows = sequence.pages if name.startswith("mla") else [sequence.slot]
                assert (view[rows] == tag).all(), f"{name} lost what {tag} wrote"


class UnifiedMachine(CacheMachine):
    is_static = False


@pytest.mark.parametrize("machine", [CacheMachine, UnifiedMachine])
def test_interleavings(machine: type[CacheMachine]) -> None:
    options = settings(max_examples=25, stateful_step_count=40, deadline=None)
    run_state_machine_as_test(machine, settings=options)


def test_contents_follow_a_move() -> None:
    """A page hole between live pages: the next slot needs its bytes, so a live page is moved."""
    cache, views = make(18, 2, is_static=False, num_sequences=8)
    arena = cache.hybrid.arena
    first, second = cache.open(4 * PAGE), cache.open(8 * PAGE)
    assert first is not None and second is not None
    cache.grow(first, 4 * PAGE)
    cache.grow(second, 8 * PAGE)
    before = second.pages
    for view in (views["mla_cache.1"], views["mla_cache.2"]):
        view[before] = np.arange(1, 9).reshape(-1, 1, 1)
    cache.close(first)
    assert cache.open(1) is not None and arena.num_moved == 0, "into the slot that is free"
    assert cache.open(1) is not None and arena.num_moved > 0
    after = second.pages
    assert after != before
    for view in (views["mla_cache.1"], views["mla_cache.2"]):
        assert (view[after] == np.arange(1, 9).reshape(-1, 1, 1)).all()
    cache.check_integrity()
