"""What a hybrid cache holds and how it makes room: slots, pages, counts, eviction, spilling.

:class:`CacheStore` knows who holds what; what sequences do with it is in ``hybrid.py``.
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
from k3compiler.runtime.cache.ops import DropHost, Ints, Kind, Spill
from k3compiler.runtime.cache.rows import SequenceRows

NOTHING = np.zeros(0, np.int64)


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


Observer = Callable[[str, dict[str, Any]], None]
"""Told of ``copy``, ``evicted``, ``spilled``, ``restored``."""


class CacheStore:
    """Memory, counts and eviction of a hybrid cache.

    Attributes:
        rows: columns of the running sequences.
        holders, locked: by page: rows and nodes that name it; rows and locked nodes.
        taken: slots that are out for a checkpoint of this step.
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

    def _fits_now(self, slots: int, pages: int) -> bool:
        """Whether they fit beside everything that lives, after compaction."""
        arena = self.arena
        return arena.fits(arena.slots.num_live + slots, arena.pages.num_live + pages)

    def _make_room(self, slots: int, pages: int) -> bool:
        """Evict, then drop rolled states, until they fit."""
        while not self._fits_now(slots, pages):
            kinds = self._lacking(slots, pages)
            if self._evict_one(kinds) or ("state" in kinds and self._drop_rolled()):
                continue
            if "page" not in kinds or not self._merge_all():
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

    def _cell_places(self, table: Ints, depth: int) -> tuple[Ints, Ints]:
        """Page place and cell number of every token of the unit that ends at ``depth``."""
        positions = np.arange((depth - 1) * self.unit, depth * self.unit)
        pages = table[positions // self.shape.page_tokens]
        return self.arena.pages.place[pages], positions % self.shape.page_tokens

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
            self._spill("state", node, place, NOTHING)
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
