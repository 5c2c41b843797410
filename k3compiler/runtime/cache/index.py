"""The prefix index: a tree of match units over which MLA pages and KDA states are found.

    root (salt, adapter) - unit 0 - unit 1 - unit 2 ...      node at depth d: the first d*unit tokens
                                \\- unit 1' ...

A node says where the unit's MLA cells are (device pages, or a host copy) and, where a checkpoint was
taken, the slot (or host copy) with the state after exactly ``depth * unit`` tokens.

    pending     some request in prefill will compute it; nothing is stored
    on device   ``pages`` hold its cells; every ancestor is on the device too
    on host     a spilled copy; every ancestor is on the device or on the host

``pins`` count the requests whose path it lies on: the node stays. ``locks`` count those that use its
cells (they hit it or computed it): the cells stay.

Pages may be larger than units: for one page index, the deepest node of a path names a page that
holds the cells of the whole path in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from k3compiler.package.expr import cdiv
from k3compiler.runtime.cache.ops import Ints
from k3compiler.runtime.cache.unit_keys import Namespace, UnitKeys

Key = tuple[Any, ...]

_FIRST_CAPACITY = 256


@dataclass(frozen=True, slots=True)
class Match:
    """A path from the root, as far as the units agree.

    Attributes:
        nodes: node ids, unit by unit.
        num_ready: units whose cells are stored (device or host); the rest is pending.
    """

    nodes: Ints
    num_ready: int


class PrefixIndex:
    """Nodes as columns of arrays; ``find`` and ``extend`` walk, everything else is array work.

    Args:
        unit: tokens per match unit. page_tokens: tokens per page.
    """

    def __init__(self, unit: int, page_tokens: int) -> None:
        self.unit, self.page_tokens = unit, page_tokens
        self.pages_per_unit = (
            unit // page_tokens if unit % page_tokens == 0 else cdiv(unit - 1, page_tokens) + 1
        )
        self.roots: dict[Namespace, int] = {}
        self._children: dict[Key, int] = {}
        self._keys: list[Key | None] = []
        self._free: list[int] = []
        self.num_nodes = 0
        self.parent: Ints = np.zeros(0, np.int64)
        self.depth: Ints = np.zeros(0, np.int64)
        self.pins: Ints = np.zeros(0, np.int64)
        self.locks: Ints = np.zeros(0, np.int64)
        self.kids: Ints = np.zeros(0, np.int64)
        self.host_kids: Ints = np.zeros(0, np.int64)
        self.device_kids: Ints = np.zeros(0, np.int64)
        self.generation: Ints = np.zeros(0, np.int64)
        self.on_device: NDArray[np.bool_] = np.zeros(0, np.bool_)
        self.cells_host: Ints = np.zeros(0, np.int64)
        self.state: Ints = np.zeros(0, np.int64)
        self.state_host: Ints = np.zeros(0, np.int64)
        self.is_spare: NDArray[np.bool_] = np.zeros(0, np.bool_)
        self.used: NDArray[np.float64] = np.zeros(0, np.float64)
        self.state_used: NDArray[np.float64] = np.zeros(0, np.float64)
        self.tick: Ints = np.zeros(0, np.int64)
        self.state_tick: Ints = np.zeros(0, np.int64)
        self.tokens: NDArray[np.int32] = np.zeros((0, unit), np.int32)
        self.pages: Ints = np.zeros((0, self.pages_per_unit), np.int64)

    # -- nodes

    def _reserve(self, count: int) -> None:
        """Grow every column to ``count`` rows."""
        old = len(self.parent)
        if count <= old:
            return
        new = max(count, 2 * old, _FIRST_CAPACITY)
        for name, fill in _COLUMNS.items():
            column: NDArray[Any] = getattr(self, name)
            grown = np.full((new, *column.shape[1:]), fill, column.dtype)
            grown[:old] = column
            setattr(self, name, grown)

    def _make(self, keys: Sequence[Key | None]) -> list[int]:
        """Fresh nodes; the caller fills the columns."""
        num_recycled = min(len(keys), len(self._free))
        ids = self._free[len(self._free) - num_recycled :]
        del self._free[len(self._free) - num_recycled :]
        for node, key in zip(ids, keys, strict=False):
            self._keys[node] = key
        first = len(self._keys)
        ids += range(first, first + len(keys) - num_recycled)
        self._keys += keys[num_recycled:]
        self._reserve(len(self._keys))
        self.num_nodes += len(keys)
        return ids

    def root(self, namespace: Namespace) -> int:
        """The root of a namespace, made on first use."""
        found = self.roots.get(namespace)
        if found is None:
            found = self._make([None])[0]
            self.roots[namespace] = found
            self.parent[found], self.depth[found] = -1, 0
            self.on_device[found] = True
        return found

    def position(self, node: int) -> int:
        """Tokens that the node's path covers."""
        return int(self.depth[node]) * self.unit

    # -- walking

    def find(self, keys: UnitKeys, limit: int) -> Match:
        """The longest path that agrees with the first ``limit`` units, tokens compared."""
        root = self.roots.get(keys.namespace)
        if root is None:
            return Match(np.zeros(0, np.int64), 0)
        nodes = np.array(self._walk(keys, root, 0, limit), np.int64)
        nodes = nodes[: self._agreeing(nodes, keys, 0)]
        ready = self.on_device[nodes] | (self.cells_host[nodes] >= 0)
        num_ready = len(nodes) if ready.all() else int(ready.argmin())
        return Match(nodes, num_ready)

    def _walk(self, keys: UnitKeys, node: int, begin: int, end: int) -> list[int]:
        path: list[int] = []
        get = self._children.get
        if keys.extras:
            for index in range(begin, end):
                child = get(keys.key(node, index))
                if child is None:
                    break
                path.append(child)
                node = child
            return path
        for digest in keys.digests[begin:end]:
            child = get((node, digest))
            if child is None:
                break
            path.append(child)
            node = child
        return path

    def _agreeing(self, nodes: Ints, keys: UnitKeys, begin: int) -> int:
        """How many of ``nodes`` hold the very tokens of the units from ``begin``."""
        same = (self.tokens[nodes] == keys.units[begin : begin + len(nodes)]).all(axis=1)
        return len(nodes) if same.all() else int(same.argmin())

    def extend(self, path: Ints, keys: UnitKeys, limit: int) -> Ints:
        """The path to unit ``limit``, with pending nodes where there were none.

        It stops early only where another unit with the same digest is in the way.
        """
        last = int(path[-1]) if len(path) else self.root(keys.namespace)
        found = np.array(self._walk(keys, last, len(path), limit), np.int64)
        agreeing = self._agreeing(found, keys, len(path))
        path = np.concatenate([path, found[:agreeing]])
        if agreeing < len(found) or len(path) == limit:
            return path
        return np.concatenate([path, self._append(path, keys, limit)])

    def _append(self, path: Ints, keys: UnitKeys, limit: int) -> Ints:
        begin = len(path)
        last = int(path[-1]) if begin else self.root(keys.namespace)
        ids = self._make([None] * (limit - begin))
        parents = [last, *ids[:-1]]
        for index, (node, parent) in enumerate(zip(ids, parents, strict=True), begin):
            key = keys.key(parent, index)
            self._keys[node] = key
            self._children[key] = node
        nodes = np.array(ids, np.int64)
        self.parent[nodes] = parents
        self.depth[nodes] = np.arange(begin + 1, limit + 1)
        self.tokens[nodes] = keys.units[begin:limit]
        self.kids[np.array(parents)] += 1
        return nodes

    def remove(self, node: int) -> None:
        """Forget a node that holds nothing and that nobody needs."""
        key = self._keys[node]
        assert key is not None, "a root is not removed"
        assert self.pins[node] == 0 and self.kids[node] == 0, f"node {node} is needed"
        assert not self.on_device[node] and self.state[node] < 0, f"node {node} holds memory"
        assert self.cells_host[node] < 0 and self.state_host[node] < 0, f"node {node} is on host"
        del self._children[key]
        self._keys[node] = None
        self.kids[self.parent[node]] -= 1
        self.generation[node] += 1
        keep = int(self.generation[node])
        for name, fill in _COLUMNS.items():
            getattr(self, name)[node] = fill
        self.generation[node] = keep
        self._free.append(node)
        self.num_nodes -= 1

    # -- geometry

    def page_indices(self, depths: Ints) -> Ints:
        """Page index per node and column; -1 past the unit's last page. ``[n] -> [n, m]``."""
        first = (depths - 1) * self.unit // self.page_tokens
        last = (depths * self.unit - 1) // self.page_tokens
        columns = first[:, None] + np.arange(self.pages_per_unit)
        return np.where(columns <= last[:, None], columns, -1)

    def path_pages(self, nodes: Ints) -> Ints:
        """The page table of a path on the device; the deepest node of a page names it."""
        if not len(nodes):
            return np.zeros(0, np.int64)
        indices, pages = self.page_indices(self.depth[nodes]), self.pages[nodes]
        table = np.zeros(int(indices.max()) + 1, np.int64)
        used = indices >= 0
        table[indices[used]] = pages[used]  # later rows win
        return table

    def media_of(self, node: int) -> tuple[tuple[str, int, int], ...]:
        """The node's media, for checks."""
        key = self._keys[node]
        return key[2] if key is not None and len(key) > 2 else ()

    def all_nodes(self) -> Ints:
        """Ids of every node but the roots."""
        return np.array([n for n, key in enumerate(self._keys) if key is not None], np.int64)

    def check_integrity(self) -> None:
        """Assert that keys, parents, counts and tiers agree."""
        nodes = self.all_nodes()
        assert len(self._children) == len(nodes), "keys and nodes differ"
        assert self.num_nodes == len(nodes) + len(self.roots), "node count is wrong"
        for node in nodes.tolist():
            key = self._keys[node]
            assert key is not None and self._children[key] == node, f"node {node}: key is lost"
            assert key[0] == self.parent[node], f"node {node}: hashed on another parent"
        if not len(nodes):
            return
        parents = self.parent[nodes]
        assert (self.depth[nodes] == self.depth[parents] + 1).all(), "depths do not chain"
        size = len(self.parent)
        kids = np.bincount(parents, minlength=size)
        assert (kids == self.kids).all(), "child counts are wrong"
        device = nodes[self.on_device[nodes]]
        device_kids = np.bincount(self.parent[device], minlength=size)
        assert (device_kids == self.device_kids).all(), "device child counts are wrong"
        assert self.on_device[self.parent[device]].all(), "a device unit hangs below none"
        host = nodes[self.cells_host[nodes] >= 0]
        host_kids = np.bincount(self.parent[host], minlength=size)
        assert (host_kids == self.host_kids).all(), "host child counts are wrong"
        inner = self.depth[parents] > 0
        for column, name in ((self.pins, "pinned"), (self.locks, "locked")):
            assert (column[nodes] <= column[parents])[inner].all(), f"{name} below one that is not"
        assert (self.on_device[nodes] | (self.locks[nodes] == 0)).all(), "locked, but not there"
        stored = self.on_device[nodes] | (self.cells_host[nodes] >= 0)
        assert (stored | (self.pins[nodes] > 0)).all(), "a pending unit has no request"
        states = nodes[self.state[nodes] >= 0]
        assert self.on_device[states].all(), "a state without its cells"
        assert len(np.unique(self.state[states])) == len(states), "two nodes own one slot"


_COLUMNS: dict[str, float] = {
    "parent": -1,
    "depth": 0,
    "pins": 0,
    "locks": 0,
    "kids": 0,
    "host_kids": 0,
    "device_kids": 0,
    "generation": 0,
    "on_device": False,
    "cells_host": -1,
    "state": -1,
    "state_host": -1,
    "is_spare": False,
    "used": 0.0,
    "state_used": 0.0,
    "tick": 0,
    "state_tick": 0,
    "tokens": 0,
    "pages": 0,
}
