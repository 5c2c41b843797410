"""The cache of a hybrid model: slots, pages, prefix index, eviction and the lower tier as one.

    probe  ->  admit  ->  grow ... publish ... checkpoint  ->  close
    (hit)      (row)      (as tokens are computed)             (cached for the next request)

Ownership: a slot belongs to one row, to one node of the index, or (within a step) to the caller who
took it for a checkpoint. A page belongs to every row whose table names it and every node that does.
Published states and cells never change: a hit copies the state into a private slot, and a page that
the hit fills only in part into a private page.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from k3compiler.package.expr import cdiv
from k3compiler.runtime.cache.ops import CopyCells, CopyStates, Ints, Restore
from k3compiler.runtime.cache.store import NOTHING, CacheShape, CacheStore, Observer
from k3compiler.runtime.cache.unit_keys import Media, Namespace, Tokens, UnitKeys


@dataclass(frozen=True, slots=True)
class Hit:
    """What the cache knows of a prompt, in tokens (multiples of the unit, below the prompt's end).

    Attributes:
        path: matched nodes; those past ``cell_tokens`` are being computed by someone.
        tokens: the longest usable prefix. cell_tokens: how far MLA cells agree.
        is_host: whether any part of the usable prefix must come from the lower tier.
    """

    path: Ints
    tokens: int
    cell_tokens: int
    is_host: bool


@dataclass(frozen=True, slots=True)
class _Start:
    """Where a row's prefix comes from.

    Attributes:
        used: nodes of the hit. on_device: those of them (a prefix) whose cells are there.
        shared: their pages, of which the first ``num_whole`` are filled whole.
        source: node whose slot has the state, -1 where there is none or it is on the host.
        steals: take that slot. num_copies: slots that its copy keeps from others.
    """

    used: Ints
    on_device: Ints
    shared: Ints
    num_whole: int
    source: int
    steals: bool
    num_copies: int

    @property
    def whole(self) -> Ints:
        return self.shared[: self.num_whole]


NO_HIT = Hit(NOTHING, 0, 0, False)


class HybridCache(CacheStore):
    """See the module."""

    # -- hits

    def probe(self, keys: UnitKeys, num_tokens: int) -> Hit:
        """The usable prefix of a prompt of ``num_tokens``; its last token is never reused."""
        limit = min(len(keys), (num_tokens - 1) // self.unit)
        match = self.index.find(keys, limit)
        stored = match.nodes[: match.num_ready]
        index = self.index
        has_state = (index.state[stored] >= 0) | (index.state_host[stored] >= 0)
        depth = int(np.flatnonzero(has_state)[-1]) + 1 if has_state.any() else 0
        used = stored[:depth]
        from_host = depth > 0 and not (index.on_device[used].all() and index.state[used[-1]] >= 0)
        return Hit(match.nodes, depth * self.unit, len(stored) * self.unit, bool(from_host))

    def admit(
        self,
        hit: Hit,
        num_tokens: int,
        *,
        headroom: int = 0,
        steal: bool = False,
        namespace: Namespace = (None, None),
        media: tuple[Media, ...] = (),
    ) -> int | None:
        """A row that starts from ``hit`` with pages promised for ``num_tokens``, or None.

        Args:
            headroom: pages to leave for the growth of others.
            steal: take the checkpoint's own slot out of the index instead of copying it.
        """
        start = self._start(hit, steal=steal)
        need = cdiv(num_tokens, self.shape.page_tokens)
        pages = self._newly_locked(start.on_device) + need - len(start.whole) + headroom
        if not self.rows.num_free or not self._can_promise(1 + start.num_copies, pages):
            return None
        row = self.rows.open()
        self.rows.namespace[row], self.rows.media[row] = namespace, media
        self.rows.promised[row] = need
        self._fill(row, hit, start)
        return row

    def _start(self, hit: Hit, *, steal: bool) -> _Start:
        """Where the parts of a hit are."""
        used = hit.path[: hit.tokens // self.unit]
        on_device = used[self.index.on_device[used]]
        source = int(used[-1]) if len(used) and self.index.state[used[-1]] >= 0 else -1
        is_free = source >= 0 and source not in self.queue.busy
        return _Start(
            used,
            on_device,
            self.index.path_pages(on_device),
            len(on_device) * self.unit // self.shape.page_tokens,
            source,
            steal and is_free,
            int(is_free and not steal),
        )

    def _newly_locked(self, nodes: Ints) -> int:
        """Pages that nobody uses yet and a row on these nodes would."""
        pages = np.unique(self._node_pages(nodes[self.index.locks[nodes] == 0]))
        return int(np.count_nonzero(self.locked[pages] == 0))

    def _fill(self, row: int, hit: Hit, start: _Start) -> None:
        """Give a new row its prefix: pages, state, what the lower tier has of it."""
        used = start.used
        self.rows.nodes[row] = used
        self.index.pins[used] += 1
        self._lock(used)
        self.queue.touch(used, int(used[-1]) if len(used) else None)
        self.rows.uses[row] = self.queue.uses_to_go_on(int(used[-1])) if len(used) else 0
        if start.steals:
            self._steal_state(row, start.source)
        elif start.source >= 0:
            self.queue.busy.add(start.source)  # before anything is evicted for the pages
        self._start_pages(row, start)
        if not start.steals:
            self._start_state(row, start)
        self._restore_cells(row, used[len(start.on_device) :], hit.tokens)
        self.rows.context[row] = hit.tokens
        self.rows.num_done[row] = len(used)

    def _can_promise(self, slots: int, pages: int) -> bool:
        """Whether they fit beside all that cannot be evicted and all that was promised."""
        rows = self.rows
        owed = np.maximum(rows.promised - rows.num_pages, 0)[rows.is_open].sum()
        locked_pages = np.count_nonzero(self.locked)
        locked_slots = rows.num_open + len(self.taken) + len(self.queue.busy)
        return self.arena.fits(locked_slots + slots, int(locked_pages + owed) + pages)

    def _start_pages(self, row: int, start: _Start) -> None:
        """Name the shared pages; copy the one that the hit fills in part."""
        rows, whole, count = self.rows, start.whole, len(start.whole)
        rows.widen(int(rows.promised[row]))
        np.add.at(self.holders, whole, 1)
        np.add.at(self.locked, whole, 1)
        rows.table[row, :count] = whole
        rows.num_pages[row] = count
        cells = len(start.on_device) * self.unit - count * self.shape.page_tokens
        if cells == 0:
            return
        private = self._take_pages(1)
        assert private is not None, "a promised page is not there"
        rows.table[row, count] = private[0]
        rows.num_pages[row] = count + 1
        src, dst = self.arena.pages.place[[start.shared[count], private[0]]].tolist()
        self.arena.ops.append(CopyCells(src, dst, cells))
        self.observe("copy", {"kind": "page", "tokens": cells})

    def _steal_state(self, row: int, source: int) -> None:
        """The checkpoint leaves the index and is the row's own."""
        self.rows.slot[row] = self.index.state[source]
        self.index.state[source] = -1
        self.queue.drop_state(source)

    def _start_state(self, row: int, start: _Start) -> None:
        """A private slot, and the checkpoint's state in it."""
        source, used = start.source, start.used
        slot = self._take_slot()
        assert slot is not None, "a promised slot is not there"
        self.rows.slot[row] = slot
        place = self.arena.slots.place
        if source >= 0:
            src = place[[self.index.state[source]]]
            self.arena.ops.append(CopyStates(src, place[[slot]]))
            self.observe("copy", {"kind": "state", "tokens": self.index.position(source)})
        elif len(used):
            handle = int(self.index.state_host[used[-1]])
            self.host.touch(handle)
            self.arena.ops.append(Restore("state", handle, place[[slot]], NOTHING))
            self.observe(
                "restored", {"kind": "state", "tokens": self.index.position(int(used[-1]))}
            )

    def _restore_cells(self, row: int, nodes: Ints, num_tokens: int) -> None:
        """Bring units of the lower tier into the row's own pages and publish them again."""
        if not len(nodes):
            return
        grown = self.grow(row, num_tokens)
        assert grown, "promised pages are not there"
        pages = self.rows.pages(row)
        for node in nodes.tolist():
            handle = int(self.index.cells_host[node])
            places, cells = self._cell_places(pages, int(self.index.depth[node]))
            self.arena.ops.append(Restore("page", handle, places, cells))
        self.observe("restored", {"kind": "page", "tokens": len(nodes) * self.unit})
        self._store(row, nodes)

    # -- growth

    def grow(self, row: int, num_tokens: int) -> bool:
        """Pages of one row for ``num_tokens`` in all; False where memory lacks."""
        have = int(self.rows.num_pages[row])
        need = cdiv(num_tokens, self.shape.page_tokens) - have
        if need <= 0:
            return True
        ids = self._take_pages(need)
        if ids is None:
            return False
        self.rows.widen(have + need)
        self.rows.table[row, have : have + need] = ids
        self.rows.num_pages[row] += need
        return True

    def grow_all(self, rows: Ints, num_tokens: Ints) -> bool:
        """Pages of many rows at once; one page more for each is a single operation."""
        columns = self.rows
        lack = num_tokens - columns.num_pages[rows] * self.shape.page_tokens
        short = rows[lack > 0]
        if not len(short):
            return True
        if lack.max() > self.shape.page_tokens:
            pairs = zip(rows.tolist(), num_tokens.tolist(), strict=True)
            return all(self.grow(row, tokens) for row, tokens in pairs)
        ids = self._take_pages(len(short))
        if ids is None:
            return False
        at = columns.num_pages[short]
        columns.widen(int(at.max()) + 1)
        columns.table[short, at] = ids
        columns.num_pages[short] += 1
        return True

    def roll(self, rows: Ints) -> None:
        """Give rows a slot for the state at the next unit boundary, where memory allows."""
        for row in rows[self.rows.rolled[rows] == 0].tolist():
            while not self._fits_now(1, 0):
                if not self._evict_one(self._lacking(1, 0)):
                    return  # another row's rolled state is worth as much
            ids = self.arena.allocate(self.arena.slots, 1)
            if ids is None:
                return
            self.rows.rolled[row], self.rows.rolled_at[row] = ids[0], -1

    # -- publishing

    def plan_path(self, row: int, keys: UnitKeys) -> None:
        """Announce the row's prompt: its nodes exist, pending, until they are computed."""
        before = self.rows.nodes[row]
        path = self.index.extend(before, keys, len(keys))
        self.index.pins[path[len(before) :]] += 1
        self.rows.nodes[row] = path

    def publish(self, row: int) -> None:
        """Store every unit of the path that the row has computed by now."""
        rows = self.rows
        done = min(int(rows.context[row]) // self.unit, len(rows.nodes[row]))
        fresh = rows.nodes[row][rows.num_done[row] : done]
        if not len(fresh):
            return
        known = self.index.on_device[fresh]
        self._lock(fresh)
        self._store(row, fresh[~known])
        if known.any():
            self._merge_pages(row, fresh[known])
        rows.num_done[row] = done
        self.changes += 1

    def _store(self, row: int, nodes: Ints) -> None:
        """The row's pages hold the cells of pinned ``nodes``; parents come first."""
        if not len(nodes):
            return
        index = self.index
        indices = index.page_indices(index.depth[nodes])
        used = indices >= 0
        pages = np.where(used, self.rows.table[row, np.maximum(indices, 0)], 0)
        index.pages[nodes] = pages
        index.on_device[nodes] = True
        np.add.at(index.device_kids, index.parent[nodes], 1)
        np.add.at(self.holders, pages[used], 1)
        np.add.at(self.locked, pages[used], 1)
        for node in nodes[index.cells_host[nodes] >= 0].tolist():
            self._drop_host_copy("page", node)
        self.queue.touch(nodes)

    def publish_state(self, row: int, position: int, slot: int, *, spare: bool = False) -> bool:
        """Donate ``slot``, whose state is after ``position`` tokens of the row, to the index.

        Returns whether it was kept; a second checkpoint of one node is given back.
        """
        self.taken.discard(slot)
        depth = position // self.unit
        path = self.rows.nodes[row]
        assert position % self.unit == 0 and depth > 0, "a checkpoint lies on a match unit"
        is_known = depth <= len(path) and self.index.on_device[path[depth - 1]]
        if not is_known or self.index.state[path[depth - 1]] >= 0:
            if is_known and not spare:
                self.index.is_spare[path[depth - 1]] = False
            self._free_slot(slot)
            return False
        node = int(path[depth - 1])
        if self.index.state_host[node] >= 0:
            self._drop_host_copy("state", node)
        self.index.state[node] = slot
        self.index.is_spare[node] = spare
        above = path[: depth - 1][self.index.state[path[: depth - 1]] >= 0]
        uses = int(self.rows.uses[row])
        self.queue.add_state(node, int(above[-1]) if len(above) else -1, uses)
        self.changes += 1
        return True

    def has_state(self, row: int, position: int) -> bool:
        """Whether the index already holds the state there (and not as a spare)."""
        path, depth = self.rows.nodes[row], position // self.unit
        if depth > len(path):
            return False
        node = path[depth - 1]
        return bool(self.index.state[node] >= 0)

    def keep_state(self, row: int, position: int) -> None:
        """A checkpoint that the index holds there is wanted: no spare any more."""
        self.index.is_spare[self.rows.nodes[row][position // self.unit - 1]] = False

    # -- the end of a row

    def close(self, row: int, tokens: Tokens | None, *, keep_state: bool = True) -> int:
        """Give back everything a row holds, after publishing what ``tokens`` lets it.

        Args:
            tokens: every token in the caches (``context`` of them); None publishes nothing more.
            keep_state: donate the state at the last unit, too.

        Returns:
            Position of the state that was donated, 0 for none.
        """
        rows = self.rows
        donated = 0
        if tokens is not None and self.shape.prefix_cache:
            self._publish_rest(row, tokens)
            donated = self._donate(row) if keep_state else 0
        self._merge_path(row)
        for column in (rows.slot, rows.rolled):
            if column[row]:
                self._free_slot(int(column[row]))
            column[row] = 0
        pages = rows.pages(row)
        rows.num_pages[row] = 0
        self._release_pages(pages)
        self._unpin(rows.nodes[row], int(rows.num_done[row]))
        rows.nodes[row] = NOTHING
        rows.close(row)
        self.changes += 1
        return donated

    def _publish_rest(self, row: int, tokens: Tokens) -> None:
        """Units of the completion, too."""
        rows = self.rows
        assert len(tokens) == rows.context[row], "tokens and context differ"
        if len(tokens) // self.unit > len(rows.nodes[row]):
            keys = UnitKeys.of(tokens, self.unit, rows.namespace[row], rows.media[row])
            self.plan_path(row, keys)
        self.publish(row)

    def _donate(self, row: int) -> int:
        """Hand the live state, or the rolled one, to the index without a copy."""
        rows = self.rows
        context = int(rows.context[row])
        last = context // self.unit * self.unit
        is_rolled = rows.rolled[row] and rows.rolled_at[row] == last
        column = rows.rolled if is_rolled else rows.slot  # a live one may have run ahead
        is_there = column[row] and (is_rolled or context == last)
        if last == 0 or not is_there:
            return 0
        slot = int(column[row])
        column[row] = 0
        return last if self.publish_state(row, last, slot) else 0

    def step_done(self) -> None:
        """Nothing of the last step is in flight any more."""
        self.queue.busy.clear()
        assert not self.taken, "a checkpoint's slot was neither published nor given back"

    def drop_all(self) -> None:
        """Forget every prefix that no running sequence holds, without spilling it."""
        self._may_spill = False
        while any(self._evict_host(h, *item) for h, item in self.host.items().items()):
            pass
        while self._evict_one(("state", "page")):
            pass
        self._may_spill = True

    def check_integrity(self) -> None:
        """Assert every invariant of ``cache/integrity.py``; between steps."""
        from k3compiler.runtime.cache.integrity import check_integrity

        check_integrity(self)


__all__ = ["NO_HIT", "CacheShape", "Hit", "HybridCache", "Observer"]
