"""The invariants of a hybrid cache, checked against a recount of everything."""

from __future__ import annotations

from collections import Counter

import numpy as np

from k3compiler.package.expr import cdiv
from k3compiler.runtime.cache.hybrid import HybridCache


def check_integrity(cache: HybridCache) -> None:
    """Assert that every table, count, pin and byte agrees; O(cache), between steps."""
    cache.arena.check_integrity()
    cache.index.check_integrity()
    _check_slots(cache)
    _check_pages(cache)
    _check_pins(cache)
    _check_rows(cache)
    _check_host(cache)
    _check_queue(cache)


def _check_slots(cache: HybridCache) -> None:
    """Every live slot has exactly one owner."""
    rows, index = cache.rows, cache.index
    nodes = index.all_nodes()
    owners = Counter(rows.slot[rows.is_open].tolist())
    owners.update(rows.rolled[rows.rolled > 0].tolist())
    owners.update(index.state[nodes][index.state[nodes] >= 0].tolist())
    owners.update(cache.taken)
    shared = [slot for slot, count in owners.items() if count > 1]
    assert not shared, f"slots {shared} have several owners"
    live = np.flatnonzero(cache.arena.slots.place[: cache.arena.slots.num_ids] >= 0)
    assert sorted(owners) == live.tolist(), f"slots {live.tolist()} live, owned {sorted(owners)}"


def _check_pages(cache: HybridCache) -> None:
    """Holders and locks of every page are what rows and nodes say."""
    count = cache.arena.pages.num_ids
    holders, locked = np.zeros(count, np.int64), np.zeros(count, np.int64)
    for row in np.flatnonzero(cache.rows.is_open).tolist():
        np.add.at(holders, cache.rows.pages(row), 1)
    locked += holders
    index = cache.index
    nodes = index.all_nodes()
    stored = nodes[index.on_device[nodes]]
    np.add.at(holders, cache._node_pages(stored), 1)
    np.add.at(locked, cache._node_pages(stored[index.locks[stored] > 0]), 1)
    assert (cache.holders[:count] == holders).all(), _first("holders", cache.holders, holders)
    assert (cache.locked[:count] == locked).all(), _first("locks", cache.locked, locked)
    live = cache.arena.pages.place[:count] >= 0
    assert (live == (holders > 0)).all(), "pages are live without a holder, or held and free"


def _first(name: str, found: np.ndarray, expected: np.ndarray) -> str:
    page = int(np.flatnonzero(found[: len(expected)] != expected)[0])
    return f"{name} of page {page}: {found[page]}, counted {expected[page]}"


def _check_pins(cache: HybridCache) -> None:
    """A node is pinned by every row whose path it lies on, locked by those that use it."""
    pins = np.zeros(len(cache.index.pins), np.int64)
    locks = np.zeros_like(pins)
    for row in np.flatnonzero(cache.rows.is_open).tolist():
        path = cache.rows.nodes[row]
        np.add.at(pins, path, 1)
        np.add.at(locks, path[: cache.rows.num_done[row]], 1)
        depths = cache.index.depth[path]
        assert (depths == np.arange(1, len(path) + 1)).all(), f"row {row}: its path has gaps"
        done = int(cache.rows.num_done[row])
        assert cache.index.on_device[path[:done]].all(), f"row {row}: stored units are not"
    assert (cache.index.pins == pins).all(), "pins differ from the rows' paths"
    assert (cache.index.locks == locks).all(), "locks differ from what the rows stored or hit"


def _check_rows(cache: HybridCache) -> None:
    rows, page = cache.rows, cache.shape.page_tokens
    for row in np.flatnonzero(rows.is_open).tolist():
        context, pages = int(rows.context[row]), rows.pages(row)
        assert len(pages) >= cdiv(context, page), f"row {row}: tokens outside its pages"
        assert (pages > 0).all(), f"row {row}: a hole in its table"
        assert len(np.unique(pages)) == len(pages), f"row {row}: a page twice in its table"
        assert rows.num_done[row] * cache.unit <= context, f"row {row}: stored before computed"
        assert rows.slot[row] > 0, f"row {row}: no slot"
    closed = ~rows.is_open
    assert not rows.num_pages[closed].any() and not rows.rolled[closed].any(), "a closed row holds"


def _check_host(cache: HybridCache) -> None:
    items = cache.host.items()
    index = cache.index
    named: dict[int, tuple[str, int]] = {}
    for node in index.all_nodes().tolist():
        if index.cells_host[node] >= 0:
            named[int(index.cells_host[node])] = ("page", node)
            assert not index.on_device[node], f"node {node}: cells in both tiers"
            parent = int(index.parent[node])
            is_stored = index.on_device[parent] or index.cells_host[parent] >= 0
            assert is_stored, f"node {node}: on the host below nothing"
        if index.state_host[node] >= 0:
            named[int(index.state_host[node])] = ("state", node)
    assert named == items, "host copies and nodes differ"
    sizes = {"page": cache.unit * cache.shape.token_bytes, "state": cache.shape.state_bytes}
    used = sum(sizes[kind] for kind, _ in items.values())
    assert used == cache.host.used_bytes <= cache.host.capacity, "host bytes are wrong"


def _check_queue(cache: HybridCache) -> None:
    """Whatever could be evicted can be found by the eviction queue."""
    index, queue = cache.index, cache.queue
    nodes = index.all_nodes()
    offered = {kind: {(e[2], e[3]) for e in heap} for kind, heap in queue._heaps.items()}
    idle = (index.locks[nodes] == 0) & (index.device_kids[nodes] == 0) & index.on_device[nodes]
    for kind, found in (("page", nodes[idle]), ("state", nodes[index.state[nodes] >= 0])):
        lost = [n for n in found.tolist() if (n, index.generation[n]) not in offered[kind]]
        assert not lost, f"{kind} of nodes {lost[:5]} can never be evicted"
