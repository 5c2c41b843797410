"""Break one invariant at a time: the checks must notice each fault, and nothing without a fault."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from k3compiler.runtime.cache.hybrid import HybridCache
from k3compiler.runtime.cache.index import PrefixIndex
from k3compiler.runtime.cache.ops import CopyCells, CopyStates, Op, Restore, ZeroPages
from k3compiler.runtime.cache.unit_keys import UnitKeys
from k3compiler.runtime.simulate.fake_device import FakeDevice
from tests.runtime.simulate.driver import random_run

Patch = pytest.MonkeyPatch
NUM_RUNS = 12
"""Seeds that a fault has; without one, all of them pass."""


def skip_ops(patch: Patch, kind: type[Op]) -> None:
    """The device ignores one kind of memory operation."""
    run_op = FakeDevice.run_op

    def skipping(self: FakeDevice, op: Op) -> None:
        if not isinstance(op, kind):
            run_op(self, op)

    patch.setattr(FakeDevice, "run_op", skipping)


def stale_state(patch: Patch) -> None:
    """A fresh sequence starts from whatever its slot held."""
    prefill = FakeDevice.prefill

    def starting_from_junk(self: FakeDevice, part: Any) -> int | None:
        if part.start == 0:
            slot = int(self._cache.rows.slot[part.row])
            before = self.state_of(slot)
            token = prefill(self, part)
            self._set_state(slot, self.state_of(slot) ^ before)
            return token
        return prefill(self, part)

    patch.setattr(FakeDevice, "prefill", starting_from_junk)


def missing_state_copy(patch: Patch) -> None:
    skip_ops(patch, CopyStates)


def missing_cell_copy(patch: Patch) -> None:
    skip_ops(patch, CopyCells)


def missing_restore(patch: Patch) -> None:
    skip_ops(patch, Restore)


def no_zeroing(patch: Patch) -> None:
    skip_ops(patch, ZeroPages)


def wrong_hash_parent(patch: Patch) -> None:
    """Units are found by their own tokens, whatever stands before them."""

    def walk(self: PrefixIndex, keys: UnitKeys, node: int, begin: int, end: int) -> list[int]:
        path: list[int] = []
        for index in range(begin, end):
            found = self._children.get(keys.key(0, index))
            if found is None:
                break
            path.append(found)
        return path

    key = UnitKeys.key
    patch.setattr(UnitKeys, "key", lambda self, parent, index: key(self, 0, index))
    patch.setattr(PrefixIndex, "_walk", walk)


def off_by_one_boundary(patch: Patch) -> None:
    """A checkpoint is filed one unit too early."""
    publish = HybridCache.publish_state

    def early(self: HybridCache, row: int, position: int, slot: int, **options: Any) -> bool:
        return publish(self, row, max(self.unit, position - self.unit), slot, **options)

    patch.setattr(HybridCache, "publish_state", early)


def early_free(patch: Patch) -> None:
    """A page is freed while somebody else still names it."""

    def unhold(self: HybridCache, ids: Any) -> None:
        np.subtract.at(self.holders, ids, 1)
        gone = np.unique(ids[self.holders[ids] <= 1])
        self.arena.free(self.arena.pages, gone[self.arena.pages.place[gone] >= 0])
        self.changes += 1

    patch.setattr(HybridCache, "_unhold_pages", unhold)


def lost_refcount(patch: Patch) -> None:
    """A hit does not lock the cells that it uses."""
    patch.setattr(HybridCache, "_lock", lambda self, nodes: None)


def page_moved_in_flight(patch: Patch) -> None:
    """A compaction after the step's tables were read, before its kernels ran."""
    run_ops = FakeDevice.run_ops

    def late_move(self: FakeDevice) -> None:
        run_ops(self)
        pages = self._cache.arena.pages
        if len(pages.holes):
            move = pages.retreat(len(pages.holes))
            assert move is not None
            self._cache.arena.ops.append(move)

    patch.setattr(FakeDevice, "run_ops", late_move)


def wrong_rollback(patch: Patch) -> None:
    """After a verify the state has seen the rejected drafts."""
    patch.setattr(FakeDevice, "_replay", lambda self, *arguments: None)


def cap_ignored(patch: Patch) -> None:
    """A prompt may be reused whole, its last token included."""
    probe = HybridCache.probe
    patch.setattr(HybridCache, "probe", lambda self, keys, tokens: probe(self, keys, tokens + 1))


def published_state_changes(patch: Patch) -> None:
    """A checkpoint is filed, and its owner goes on in the same slot."""
    publish = HybridCache.publish_state

    def keep_using(self: HybridCache, row: int, position: int, slot: int, **options: Any) -> bool:
        kept = publish(self, row, position, slot, **options)
        if kept and self.rows.context[row] == position and self.rows.slot[row]:
            old = int(self.rows.slot[row])
            if old != slot:
                self._free_slot(old)
                self.rows.slot[row] = slot
        return kept

    patch.setattr(HybridCache, "publish_state", keep_using)


def promise_broken(patch: Patch) -> None:
    """Admission does not look at memory."""
    patch.setattr(HybridCache, "_can_promise", lambda self, slots, pages: True)


def salt_ignored(patch: Patch) -> None:
    """Adapters share a root."""
    root, find = PrefixIndex.root, PrefixIndex.find

    def shared(keys: UnitKeys) -> UnitKeys:
        return UnitKeys((None, None), keys.units, keys.digests, keys.extras)

    patch.setattr(PrefixIndex, "root", lambda self, namespace: root(self, (None, None)))
    patch.setattr(PrefixIndex, "find", lambda self, keys, limit: find(self, shared(keys), limit))


def media_ignored(patch: Patch) -> None:
    """Units are found by placeholder tokens, whatever media they stand for."""
    of = UnitKeys.of.__func__  # type: ignore[attr-defined]
    blind = classmethod(lambda cls, tokens, unit, namespace=(None, None), media=(): of(
        cls, tokens, unit, namespace, ()
    ))  # fmt: skip
    patch.setattr(UnitKeys, "of", blind)


def rolled_never(patch: Patch) -> None:
    """The state at a boundary that decoding passes is not copied."""
    patch.setattr(FakeDevice, "_roll", lambda self, row: None)


pytestmark = pytest.mark.slow

FAULTS: list[Callable[[Patch], None]] = [
    stale_state, missing_state_copy, missing_cell_copy, missing_restore, no_zeroing,
    wrong_hash_parent, off_by_one_boundary, early_free, lost_refcount, page_moved_in_flight,
    wrong_rollback, cap_ignored, published_state_changes, promise_broken, salt_ignored,
    media_ignored, rolled_never,
]  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.__name__)
def test_every_fault_is_noticed(fault: Callable[[Patch], None], monkeypatch: Patch) -> None:
    fault(monkeypatch)
    for seed in range(NUM_RUNS):
        try:
            random_run(seed)
        except (AssertionError, KeyError, IndexError, ValueError):
            return
    pytest.fail(f"{fault.__name__} went unnoticed in {NUM_RUNS} runs")


def test_nothing_is_noticed_without_a_fault() -> None:
    for seed in range(NUM_RUNS // 2):  # test_machine runs the others
        random_run(seed)
