"""The cache of a hybrid model: slots, pages, prefix index, eviction and the lower tier as one.

    probe  ->  admit  ->  grow ... publish ... checkpoint  ->  close
    (hit)      (row)      (as tokens are computed)             (cached for the next request)

Ownership: a slot belongs to one row, to one node of the index, or (within a step) to the caller who
took it for a checkpoint. A page belongs to every row whose table names it and every node that does.
Published states and cells never change: a hit copies the state into a private slot, and a page that
the hit fills only in part into a private page.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from k3compiler.package.expr import cdiv
from k3compiler.runtime.cache.arena import Arena
from k3compiler.runtime.cache.eviction import EvictionQueue, Policy
from k3compiler.runtime.cache.host_tier import HostTier
from k3compiler.runtime.cache.index import PrefixIndex
from k3compiler.runtime.cache.ops import (
    CopyCells,
    CopyStates,
    DropHost,
    Ints,
    Kind,
    Restore,
    Spill,
)
from k3compiler.runtime.cache.rows import SequenceRows
from k3compiler.runtime.cache.unit_keys import Media, Namespace, Tokens, UnitKeys

_NOTHING = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class CacheShape:
    """Sizes of a hybrid cache.

    Attributes:
        num_bytes: of the arena. state_bytes: one slot. token_bytes: one token's cells.
        unit: tokens per match unit, a multiple of the kda chunk.
        static_slots: fixed split (slots, the rest pages); None shares all bytes.
        host_bytes: of the lower tier; 0 is none.
        prefix_cache: keep and find prefixes.
    """

    num_bytes: int
    state_bytes: int
    token_bytes: int
    num_rows: int
    page_tokens: int = 64
    unit: int = 64
    static_slots: int | None = None
    host_bytes: int = 0
    eviction: Policy = "value"
    prefix_cache: bool = True

    @property
    def page_bytes(self) -> int:
        return self.page_tokens * self.token_bytes


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


NO_HIT = Hit(_NOTHING, 0, 0, False)

Observer = Callable[[str, dict[str, Any]], None]
"""Told of ``copy``, ``evicted``, ``spilled``, ``restored``."""


class HybridCache:
    """See the module.

    Attributes:
        rows: columns of the running sequences.
        changes: grows whenever memory was given back or something was published.
    """

    def __init__(self, shape: CacheShape, observe: Observer | None = None) -> None:
        self.shape, self.unit = shape, shape.unit
        self.arena = Arena(
            shape.num_bytes,
            state_bytes=shape.state_bytes,
            page_bytes=shape.page_bytes,
            static_slots=shape.static_slots,
        )
        self.rows = SequenceRows(shape.num_rows)
        self.index = PrefixIndex(shape.unit, shape.page_tokens)
        state_tokens = shape.state_bytes / shape.token_bytes
        self.queue = EvictionQueue(self.index, shape.eviction, state_tokens)
        unit_bytes = shape.unit * shape.token_bytes
        self.host = HostTier(shape.host_bytes, {"page": unit_bytes, "state": shape.state_bytes})
        self.holders: Ints = np.zeros(64, np.int64)  # by page: rows and nodes that name it
        self.locked: Ints = np.zeros(64, np.int64)  # by page: rows and locked nodes
        self.taken: set[int] = set()  # slots out for a checkpoint of this step
        self.changes = 0
        self._may_spill = True
        self.observe: Observer = observe or (lambda event, fields: None)
        self._swaps_pages = shape.unit % shape.page_tokens == 0

    # -- memory

    @property
    def _live_slots(self) -> int:
        return self.arena.slots.num_live

    def _fits_now(self, slots: int, pages: int) -> bool:
        """Whether they fit beside everything that lives, after compaction."""
        arena = self.arena
        return arena.fits(arena.slots.num_live + slots, arena.pages.num_live + pages)

    def _make_room(self, slots: int, pages: int) -> bool:
        """Evict, then drop rolled states, until they fit."""
        while not self._fits_now(slots, pages):
            kinds = self._lacking(slots, pages)
            if not (self._evict_one(kinds) or self._drop_rolled() or self._merge_all()):
                return False
        return True

    def _merge_all(self) -> bool:
        """Let every path name its row's own pages; True where that freed any."""
        before = self.arena.pages.num_live
        for row in np.flatnonzero(self.rows.is_open).tolist():
            self._merge_path(row)
        return self.arena.pages.num_live < before

    def _merge_path(self, row: int) -> None:
        """Pages larger than units: a copied page replaces the one that it was copied from."""
        if not self._swaps_pages:
            self._merge_pages(row, self.rows.nodes[row][: self.rows.num_done[row]])

    def _lacking(self, slots: int, pages: int) -> tuple[Kind, ...]:
        arena = self.arena
        if not arena.is_static:
            return ("state", "page")
        assert arena.slots.limit is not None
        is_slots = arena.slots.num_live + slots > arena.slots.limit
        return ("state",) if is_slots else ("page",)

    def _drop_rolled(self) -> bool:
        owners = np.flatnonzero(self.rows.rolled)
        if not len(owners):
            return False
        row = int(owners[-1])
        self._free_slot(int(self.rows.rolled[row]))
        self.rows.rolled[row] = 0
        return True

    def _free_slot(self, slot: int) -> None:
        self.arena.free(self.arena.slots, np.array([slot]))
        self.changes += 1

    def take_slot(self, *, spare: bool = False) -> int | None:
        """A slot for a checkpoint; ``spare`` only takes what nobody needs or was promised.

        Ownership: the caller's, until it is published or given to :meth:`return_slot`.
        """
        if spare and not self._has_spare():
            return None
        slot = self._take_slot()
        if slot is not None:
            self.taken.add(slot)
        return slot

    def _has_spare(self) -> bool:
        owed = np.maximum(self.rows.promised - self.rows.num_pages, 0)[self.rows.is_open]
        return self._fits_now(1, int(owed.sum()) + self.rows.num_open)

    def _take_slot(self) -> int | None:
        if not self._make_room(1, 0):
            return None
        ids = self.arena.allocate(self.arena.slots, 1)
        return None if ids is None else int(ids[0])

    def return_slot(self, slot: int) -> None:
        """Give back a slot of :meth:`take_slot` that was not used."""
        self.taken.discard(slot)
        self._free_slot(slot)

    def _take_pages(self, count: int) -> Ints | None:
        """Private pages (held and locked once)."""
        if not self._make_room(0, count):
            return None
        ids = self.arena.allocate(self.arena.pages, count)
        if ids is None:
            return None
        self._reserve_pages()
        self.holders[ids] = self.locked[ids] = 1
        return ids

    def _reserve_pages(self) -> None:
        need = self.arena.pages.num_ids
        if need > len(self.holders):
            extra = max(need, 2 * len(self.holders)) - len(self.holders)
            self.holders = np.concatenate([self.holders, np.zeros(extra, np.int64)])
            self.locked = np.concatenate([self.locked, np.zeros(extra, np.int64)])

    def _release_pages(self, ids: Ints) -> None:
        """A row lets go of pages."""
        np.subtract.at(self.locked, ids, 1)
        self._unhold_pages(ids)

    def _unhold_pages(self, ids: Ints) -> None:
        np.subtract.at(self.holders, ids, 1)
        gone = np.unique(ids[self.holders[ids] == 0])
        self.arena.free(self.arena.pages, gone)
        self.changes += 1

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
        used = hit.path[: hit.tokens // self.unit]
        on_device = used[self.index.on_device[used]]
        shared = self.index.path_pages(on_device)
        shared_tokens = len(on_device) * self.unit
        num_shared = shared_tokens // self.shape.page_tokens
        need = cdiv(num_tokens, self.shape.page_tokens)
        source = int(used[-1]) if len(used) and self.index.state[used[-1]] >= 0 else -1
        steal = steal and source >= 0 and source not in self.queue.busy
        copies = int(source >= 0 and not steal and source not in self.queue.busy)
        newly_locked = np.unique(self._node_pages(on_device[self.index.locks[on_device] == 0]))
        newly_locked = newly_locked[self.locked[newly_locked] == 0]
        pages = len(newly_locked) + need - num_shared + headroom
        if not self.rows.num_free or not self._can_promise(1 + copies, pages):
            return None
        row = self.rows.open()
        self.rows.namespace[row], self.rows.media[row] = namespace, media
        self.rows.promised[row] = need
        self.rows.nodes[row] = used
        self.index.pins[used] += 1
        self._lock(used)
        self.queue.touch(used, int(used[-1]) if len(used) else None)
        if steal:
            self._steal_state(row, source)
        elif source >= 0:
            self.queue.busy.add(source)  # before anything is evicted for the pages
        self._start_pages(row, shared[:num_shared], shared, shared_tokens)
        if not steal:
            self._start_state(row, source, used)
        self._restore_cells(row, used[len(on_device) :], hit.tokens)
        self.rows.context[row] = hit.tokens
        self.rows.num_done[row] = len(used)
        return row

    def _can_promise(self, slots: int, pages: int) -> bool:
        """Whether they fit beside all that cannot be evicted and all that was promised."""
        rows = self.rows
        owed = np.maximum(rows.promised - rows.num_pages, 0)[rows.is_open].sum()
        locked_pages = np.count_nonzero(self.locked)
        locked_slots = rows.num_open + len(self.taken) + len(self.queue.busy)
        return self.arena.fits(locked_slots + slots, int(locked_pages + owed) + pages)

    def _start_pages(self, row: int, whole: Ints, shared: Ints, shared_tokens: int) -> None:
        """Name the shared pages; copy the one that the hit fills in part."""
        rows, count = self.rows, len(whole)
        rows.widen(int(rows.promised[row]))
        np.add.at(self.holders, whole, 1)
        np.add.at(self.locked, whole, 1)
        rows.table[row, :count] = whole
        rows.num_pages[row] = count
        cells = shared_tokens - count * self.shape.page_tokens
        if cells == 0:
            return
        private = self._take_pages(1)
        assert private is not None, "a promised page is not there"
        rows.table[row, count] = private[0]
        rows.num_pages[row] = count + 1
        place = self.arena.pages.place
        self.arena.ops.append(CopyCells(int(place[shared[count]]), int(place[private[0]]), cells))
        self.observe("copy", {"kind": "page", "tokens": cells})

    def _steal_state(self, row: int, source: int) -> None:
        """The checkpoint leaves the index and is the row's own."""
        self.rows.slot[row] = self.index.state[source]
        self.index.state[source] = -1
        self.queue.drop_state(source)

    def _start_state(self, row: int, source: int, used: Ints) -> None:
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
            self.arena.ops.append(Restore("state", handle, place[[slot]], _NOTHING))
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

    def _cell_places(self, table: Ints, depth: int) -> tuple[Ints, Ints]:
        """Page place and cell number of every token of the unit that ends at ``depth``."""
        positions = np.arange((depth - 1) * self.unit, depth * self.unit)
        pages = table[positions // self.shape.page_tokens]
        return self.arena.pages.place[pages], positions % self.shape.page_tokens

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
            if not self._fits_now(1, 0) and self._evict_for_roll() is None:
                return
            ids = self.arena.allocate(self.arena.slots, 1)
            if ids is None:
                return
            self.rows.rolled[row] = ids[0]
            self.rows.rolled_at[row] = -1

    def _evict_for_roll(self) -> bool | None:
        while not self._fits_now(1, 0):
            if not self._evict_one(self._lacking(1, 0)):
                return None
        return True

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

    def _merge_pages(self, row: int, nodes: Ints) -> None:
        """Someone else stored these units, too: keep one copy.

        Where pages are not larger than units the row takes the stored ones, otherwise the nodes take
        the row's, which hold the cells of the whole path.
        """
        rows, index = self.rows, self.index
        indices = index.page_indices(index.depth[nodes])
        used = indices >= 0
        stored = index.pages[nodes][used]
        own = rows.table[row, np.maximum(indices, 0)].astype(np.int64)
        new, old = (stored, own[used]) if self._swaps_pages else (own[used], stored)
        np.add.at(self.holders, new, 1)
        np.add.at(self.locked, new, 1)
        if self._swaps_pages:
            rows.table[row, indices[used]] = stored
        else:
            index.pages[nodes] = np.where(used, own, 0)
        self._release_pages(old)

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
        self.queue.add_state(node, int(above[-1]) if len(above) else -1)
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
        rows.nodes[row] = _NOTHING
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
        column = rows.slot if context == last else rows.rolled
        is_there = column[row] and (context == last or rows.rolled_at[row] == last)
        if last == 0 or not is_there:
            return 0
        slot = int(column[row])
        column[row] = 0
        return last if self.publish_state(row, last, slot) else 0

    # -- pins

    def _node_pages(self, nodes: Ints) -> Ints:
        """Pages that stored nodes name, with repetitions."""
        pages = self.index.pages[nodes].ravel()
        return pages[pages > 0]

    def _lock(self, nodes: Ints) -> None:
        """A row uses the cells of nodes."""
        index = self.index
        first = nodes[(index.locks[nodes] == 0) & index.on_device[nodes]]
        index.locks[nodes] += 1
        np.add.at(self.locked, self._node_pages(first), 1)

    def _unpin(self, path: Ints, num_used: int) -> None:
        """A row leaves its path, of which it used the cells of the first nodes."""
        index, used = self.index, path[:num_used]
        index.pins[path] -= 1
        index.locks[used] -= 1
        idle = used[index.locks[used] == 0]
        np.subtract.at(self.locked, self._node_pages(idle), 1)
        self.queue.offer_cells(idle[index.device_kids[idle] == 0])
        for node in path[index.pins[path] == 0][::-1].tolist():
            self._forget(node)

    def _forget(self, node: int) -> None:
        """Remove a node that holds nothing any more."""
        index = self.index
        is_needed = index.pins[node] or index.kids[node] or index.on_device[node]
        if not is_needed and index.cells_host[node] < 0:
            if index.state_host[node] >= 0:
                self._drop_host_copy("state", node)
            index.remove(node)

    # -- eviction

    def _evict_one(self, kinds: tuple[Kind, ...]) -> bool:
        victim = self.queue.pop(kinds)
        if victim is None:
            return False
        kind, node = victim
        if self.index.state[node] >= 0:
            self._evict_state(node)
        if kind == "page":
            self._evict_cells(node)
        return True

    def _evict_state(self, node: int) -> None:
        slot = int(self.index.state[node])
        if not self.index.is_spare[node] and self.host.can_hold("state"):
            place = self.arena.slots.place[[slot]]
            self._spill("state", node, place, _NOTHING)
        self.index.state[node] = -1
        self.index.is_spare[node] = False
        self.queue.drop_state(node)
        self.queue.offer_cells(np.array([node]))
        self._free_slot(slot)
        self.observe("evicted", {"kind": "state", "tokens": self.index.position(node)})

    def _evict_cells(self, node: int) -> None:
        index = self.index
        position, parent = index.position(node), int(index.parent[node])
        if self.host.can_hold("page"):
            table = np.zeros(cdiv(position, self.shape.page_tokens), np.int64)
            columns = index.page_indices(index.depth[[node]])[0]
            table[columns[columns >= 0]] = index.pages[node][columns >= 0]
            self._spill("page", node, *self._cell_places(table, int(index.depth[node])))
        pages = self._node_pages(np.array([node]))
        if index.cells_host[node] < 0:
            self._drop_below(node)
            if index.state_host[node] >= 0:
                self._drop_host_copy("state", node)
        index.on_device[node] = False
        index.device_kids[parent] -= 1
        index.pages[node] = 0
        self._unhold_pages(pages)
        self._forget(node)
        self.queue.offer_cells(np.array([parent]))
        self.observe("evicted", {"kind": "page", "tokens": position})

    def _spill(self, kind: Kind, node: int, places: Ints, cells: Ints) -> bool:
        if not self._may_spill or not self.host.make_room(kind, self._evict_host):
            return False
        handle = self.host.put(kind, node)
        if kind == "state":
            self.index.state_host[node] = handle
        else:
            self.index.cells_host[node] = handle
            self.index.host_kids[self.index.parent[node]] += 1
        self.arena.ops.append(Spill(kind, handle, places, cells))
        self.observe("spilled", {"kind": kind, "tokens": self.index.position(node)})
        return True

    def _drop_below(self, node: int) -> None:
        """Forget the host copies below a unit whose cells are lost."""
        while self.index.host_kids[node]:
            for handle, (kind, below) in reversed(self.host.items().items()):
                if kind == "page" and self._hangs_below(below, node):
                    self._evict_host(handle, kind, below)

    def _hangs_below(self, node: int, ancestor: int) -> bool:
        while self.index.depth[node] > self.index.depth[ancestor]:
            node = int(self.index.parent[node])
        return node == ancestor

    def _evict_host(self, handle: int, kind: Kind, node: int) -> bool:
        """Drop a host copy, unless copies below need it or a request is just taking it."""
        index = self.index
        if index.locks[node] or (kind == "page" and index.host_kids[node]):
            return False
        if not self.host.has(handle):
            return False
        self._drop_host_copy(kind, node)
        if kind == "page":
            if index.state_host[node] >= 0:
                self._drop_host_copy("state", node)
            self._forget(node)
        return True

    def _drop_host_copy(self, kind: Kind, node: int) -> None:
        column = self.index.state_host if kind == "state" else self.index.cells_host
        if kind == "page":
            self.index.host_kids[self.index.parent[node]] -= 1
        self.arena.ops.append(DropHost(int(column[node])))
        self.host.drop(int(column[node]))
        column[node] = -1

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
