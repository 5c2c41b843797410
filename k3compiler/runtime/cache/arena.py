"""One byte range for both kinds of cache memory.

    0                                                              num_bytes
    | slot 0 | slot 1 | hole | slot 3 |----- gap -----| page 1 | hole | page 0 |
                                      ^ slots.frontier         pages.frontier ^ (counted from the end)

KDA slots (all KDA layers of one request) lie from the low end, MLA pages (all MLA layers of
``page_tokens`` tokens) from the high end. Everything above names *virtual ids*; a compaction changes
only the tables here and the bytes. Ids begin at 1: id 0 is nobody's.

Holes are filled first, nearest the own end, without a move. Only when one side needs gap bytes that
holes of the other side withhold does the other side retreat, by exactly what is missing.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from k3compiler.package.expr import cdiv
from k3compiler.runtime.cache.ops import Ints, Kind, Move, Op, ZeroPages

_FIRST_CAPACITY = 64


class Side:
    """The virtual ids of one kind and the places they lie at, packed towards one end.

    Attributes:
        item_bytes: bytes of one slot or page.
        limit: places at most (static split), None where only bytes limit.
        place: by virtual id, -1 where the id is free. owner: by place, 0 in a hole.
        pinned: by virtual id; such an item is not moved.
    """

    def __init__(self, kind: Kind, item_bytes: int, limit: int | None) -> None:
        self.kind: Kind = kind
        self.item_bytes, self.limit = item_bytes, limit
        self._frontier = 0
        self.place: Ints = np.full(_FIRST_CAPACITY, -1, np.int64)
        self.owner: Ints = np.zeros(_FIRST_CAPACITY, np.int64)
        self.pinned: NDArray[np.bool_] = np.zeros(_FIRST_CAPACITY, np.bool_)
        self._holes: Ints = np.zeros(0, np.int64)  # descending
        self._loose: list[Ints] = []  # places freed since the holes were last sorted
        self._num_loose = 0
        self._free_ids: list[int] = []
        self._next_id = 1

    @property
    def frontier(self) -> int:
        """Places in use or holes; the next fresh place."""
        self._settle()
        return self._frontier

    @property
    def holes(self) -> Ints:
        """Free places below the frontier, descending."""
        self._settle()
        return self._holes

    @property
    def num_live(self) -> int:
        return self._frontier - len(self._holes) - self._num_loose

    @property
    def num_ids(self) -> int:
        """Ids ever made, the null id included: the length that arrays by id need."""
        return self._next_id

    @property
    def live_bytes(self) -> int:
        return self.num_live * self.item_bytes

    def take(self, count: int) -> Ints:
        """Ids for ``count`` items: holes nearest the own end first, then fresh places."""
        self._settle()
        from_holes = min(count, len(self._holes))
        split = len(self._holes) - from_holes
        fresh = np.arange(self._frontier, self._frontier + count - from_holes)
        places = np.concatenate([self._holes[split:][::-1], fresh])
        self._holes = self._holes[:split]
        self._frontier += len(fresh)
        ids = self._make_ids(count)
        self._reserve()
        self.place[ids] = places
        self.owner[places] = ids
        return ids

    def _make_ids(self, count: int) -> Ints:
        recycled = self._free_ids[len(self._free_ids) - min(count, len(self._free_ids)) :]
        del self._free_ids[len(self._free_ids) - len(recycled) :]
        first = self._next_id
        self._next_id += count - len(recycled)
        return np.array([*recycled, *range(first, self._next_id)], np.int64)

    def _reserve(self) -> None:
        need = max(self._next_id, self._frontier)
        if need <= len(self.place):
            return
        extra = max(need, 2 * len(self.place)) - len(self.place)
        self.place = np.concatenate([self.place, np.full(extra, -1, np.int64)])
        self.owner = np.concatenate([self.owner, np.zeros(extra, np.int64)])
        self.pinned = np.concatenate([self.pinned, np.zeros(extra, np.bool_)])

    def give(self, ids: Ints) -> None:
        """Take ids back."""
        places = self.place[ids]
        assert (places >= 0).all(), f"{self.kind} freed twice"
        assert not self.pinned[ids].any(), f"a pinned {self.kind} was freed"
        self.place[ids] = -1
        self.owner[places] = 0
        self._free_ids.extend(ids.tolist())
        self._loose.append(places)
        self._num_loose += len(places)

    def _settle(self) -> None:
        """Sort what was freed into the holes; the frontier falls over those at its edge."""
        if not self._loose:
            return
        holes = np.sort(np.concatenate([self._holes, *self._loose]))[::-1]
        assert len(holes) < 2 or (holes[1:] != holes[:-1]).all(), f"{self.kind} freed twice at once"
        self._loose, self._num_loose = [], 0
        edge = holes == self._frontier - 1 - np.arange(len(holes))
        run = len(holes) if edge.all() else int(edge.argmin())
        self._frontier -= run
        self._holes = holes[run:].copy()

    def retreat(self, count: int) -> Move | None:
        """Give up the last ``count`` places, moving what lives there into holes below them.

        Returns the move (perhaps of nothing), or None where it cannot be: too few holes, or a
        pinned item in the way.
        """
        target = self.frontier - count
        if target < self.num_live:
            return None
        movers = self.owner[target : self.frontier]
        movers = movers[movers > 0]
        if self.pinned[movers].any():
            return None
        keep = self.holes[self.holes < target]
        split = len(keep) - len(movers)
        dst, src = keep[split:][::-1].copy(), self.place[movers]
        self.owner[src] = 0
        self.place[movers] = dst
        self.owner[dst] = movers
        self._frontier, self._holes = target, keep[:split].copy()
        return Move(self.kind, src, dst)

    def check_integrity(self) -> None:
        """Assert that ids and places are one-to-one and that holes are what is left."""
        ids = np.flatnonzero(self.place[: self._next_id] >= 0)
        assert len(ids) == self.num_live, f"{self.kind}: {len(ids)} ids, {self.num_live} live"
        assert (self.owner[self.place[ids]] == ids).all(), f"{self.kind}: place and owner disagree"
        holes = np.flatnonzero(self.owner[: self.frontier] == 0)
        assert (holes[::-1] == self.holes).all(), f"{self.kind}: holes are wrong"
        assert (self.owner[self.frontier :] == 0).all(), f"{self.kind}: live past the frontier"
        free = sorted(self._free_ids)
        dead = np.flatnonzero(self.place[1 : self._next_id] < 0) + 1
        assert free == dead.tolist(), f"{self.kind}: free ids are wrong"


class Arena:
    """Bookkeeping of one arena; the bytes themselves belong to a device.

    Args:
        num_bytes: of the whole arena.
        state_bytes, page_bytes: of a slot and of a page.
        static_slots: None shares all bytes; a number fixes that many slots, the rest being pages.

    Attributes:
        ops: what the device has to do, in order; whoever runs it empties it.
        num_moved: items that compactions moved so far.
        is_frozen: a step is in flight: what would need a move is not given.
    """

    def __init__(
        self, num_bytes: int, *, state_bytes: int, page_bytes: int, static_slots: int | None = None
    ) -> None:
        self.num_bytes = num_bytes
        page_limit = None
        if static_slots is not None:
            page_limit = max(0, num_bytes - static_slots * state_bytes) // page_bytes
        self.slots = Side("state", state_bytes, static_slots)
        self.pages = Side("page", page_bytes, page_limit)
        self.ops: list[Op] = []
        self.num_moved = 0
        self.is_frozen = False

    @property
    def gap_bytes(self) -> int:
        """The one free piece between the two frontiers."""
        used = self.slots.frontier * self.slots.item_bytes
        return self.num_bytes - used - self.pages.frontier * self.pages.item_bytes

    @property
    def is_static(self) -> bool:
        return self.slots.limit is not None

    def allocatable(self, side: Side) -> int:
        """Items that can be handed out *now*: own holes and the gap, without a move."""
        if side.limit is not None:
            return side.limit - side.num_live
        return len(side.holes) + max(0, self.gap_bytes) // side.item_bytes

    def fits(self, slots: int, pages: int) -> bool:
        """Whether so many *live* items in all would fit a fully compacted arena.

        This is the number that admission may count on, once eviction has made room for it.
        """
        if self.slots.limit is not None and self.pages.limit is not None:
            return slots <= self.slots.limit and pages <= self.pages.limit
        need = slots * self.slots.item_bytes + pages * self.pages.item_bytes
        return need <= self.num_bytes

    def allocate(self, side: Side, count: int) -> Ints | None:
        """Ids of ``count`` items, all or nothing; compacts the other side where bytes lack.

        None where they do not fit, or not without a move that may not be made now.
        """
        if count > self.allocatable(side) and not self._make_gap(side, count):
            return None
        ids = side.take(count)
        if side is self.pages and count:
            self.ops.append(ZeroPages(side.place[ids]))
        return ids

    def _make_gap(self, side: Side, count: int) -> bool:
        if side.limit is not None:
            return False
        other = self.pages if side is self.slots else self.slots
        short = (count - len(side.holes)) * side.item_bytes - self.gap_bytes
        if short > len(other.holes) * other.item_bytes:
            return False
        if self.is_frozen:
            return False
        move = other.retreat(cdiv(short, other.item_bytes))
        if move is None:
            return False
        if len(move.src):
            self.ops.append(move)
            self.num_moved += len(move.src)
        return True

    def free(self, side: Side, ids: Ints) -> None:
        """Give items back."""
        if len(ids):
            side.give(ids)

    def addresses(self, side: Side, ids: Ints) -> Ints:
        """64-bit byte offsets of items in the arena."""
        places = side.place[ids]
        assert (places >= 0).all(), f"a free {side.kind} has no address"
        if side is self.slots:
            return places * side.item_bytes
        return self.num_bytes - (places + 1) * side.item_bytes

    def check_integrity(self) -> None:
        """Assert that both sides are consistent and do not overlap."""
        self.slots.check_integrity()
        self.pages.check_integrity()
        for side in (self.slots, self.pages):
            assert side.limit is None or side.frontier <= side.limit, f"{side.kind}: past its limit"
        assert self.gap_bytes >= 0, "slots and pages overlap"
        holes = sum(len(s.holes) * s.item_bytes for s in (self.slots, self.pages))
        live = self.slots.live_bytes + self.pages.live_bytes
        assert live + holes + self.gap_bytes == self.num_bytes, "bytes are lost"
