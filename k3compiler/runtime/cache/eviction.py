"""Which cached thing goes first.

``lru``     least recently used first.
``value``   recency plus the compute saved per byte: score = clock at the last use + w, where
            w = F L / (L + S), L = tokens that only this state saves, S = the tokens whose cells take
            as many bytes as a state, F = how often the conversation that it ends was found here
            again, up to MOST_USES. The clock is the score of whatever was evicted last, so that
            unused things age (GreedyDual-Size with frequencies; Cao, Irani, 1997; Cherkasova,
            1998). Where conversations in turn need more than there is, those found last time stay,
            instead of all being evicted just before their turn. Cells that no state needs have
            w = 0.

Spare checkpoints (log-spaced extras) go before everything else. Cells go leaf by leaf; a state goes
from anywhere and leaves its cells.

The heaps are lazy: an entry is checked and rescored when it comes up.
"""

from __future__ import annotations

import heapq
from typing import Literal

from k3compiler.runtime.cache.index import PrefixIndex
from k3compiler.runtime.cache.ops import Ints, Kind

Policy = Literal["lru", "value"]
Entry = tuple[float, int, int, int]
"""Score, tick of the last use, node, its generation."""

MOST_USES = 8
_SPARE = -1e18


class EvictionQueue:
    """Orders the evictable units ("page") and checkpoints ("state") of an index.

    Args:
        state_tokens: tokens whose cells take the bytes of one state.

    ``_uses`` and ``_starts`` are by node with a state: F, and the requests that began there.

    Attributes:
        busy: nodes whose state a step in flight reads or writes; they are passed over.
    """

    def __init__(self, index: PrefixIndex, policy: Policy, state_tokens: float) -> None:
        self._index, self._policy, self._state_tokens = index, policy, state_tokens
        self._heaps: dict[Kind, list[Entry]] = {"state": [], "page": []}
        self._above: dict[int, int] = {}
        self._below: dict[int, set[int]] = {}
        self._uses: dict[int, int] = {}
        self._starts: dict[int, int] = {}
        self._tick = 0
        self.clock = 0.0
        self.busy: set[int] = set()

    def touch(self, nodes: Ints, state_node: int | None = None) -> None:
        """A request used these units, and the state of ``state_node``."""
        self._tick += 1
        index = self._index
        now = self.clock if self._policy == "value" else float(self._tick)
        index.used[nodes] = now
        index.tick[nodes] = self._tick
        if state_node is not None:
            index.state_used[state_node] = now
            index.state_tick[state_node] = self._tick
            if state_node in self._uses:
                self._uses[state_node] += 1
                self._starts[state_node] += 1

    def offer_cells(self, nodes: Ints) -> None:
        """Units that may have become evictable leaves."""
        index = self._index
        for node in nodes.tolist():
            if self._is_leaf(node):
                entry = (self._cells_score(node), int(index.tick[node]), node)
                heapq.heappush(self._heaps["page"], (*entry, int(index.generation[node])))

    def uses_to_go_on(self, node: int) -> int:
        """Uses that a row inherits which has just started from the state at ``node``.

        Those of the conversation so far, where this is its first continuation; of a prefix that
        several share none.
        """
        return self._uses.get(node, 0) if self._starts.get(node, 0) == 1 else 0

    def add_state(self, node: int, above: int, uses: int) -> None:
        """``node`` got a checkpoint; ``above`` is the next one on its path to the root, or -1.

        ``uses``: of the state that its row started from.
        """
        self._above[node] = above
        self._below.setdefault(above, set()).add(node)
        self.touch(self._index.depth[:0], node)
        self._uses[node], self._starts[node] = uses + 1, 0
        self._push_state(node)

    def drop_state(self, node: int) -> None:
        """``node`` lost its checkpoint; those that follow save more from now on."""
        above = self._above.pop(node)
        del self._uses[node], self._starts[node]
        self._below[above].discard(node)
        for below in self._below.pop(node, ()):
            self._above[below] = above
            self._below[above].add(below)

    def _push_state(self, node: int) -> None:
        index = self._index
        entry = (self._state_score(node), int(index.state_tick[node]), node)
        heapq.heappush(self._heaps["state"], (*entry, int(index.generation[node])))

    def _is_leaf(self, node: int) -> bool:
        index = self._index
        is_free = index.locks[node] == 0 and index.device_kids[node] == 0
        return bool(is_free and index.on_device[node] and index.depth[node] > 0)

    def _cells_score(self, node: int) -> float:
        own = float(self._index.used[node])
        return max(own, self._state_score(node)) if self._index.state[node] >= 0 else own

    def _state_score(self, node: int) -> float:
        index = self._index
        score = float(index.state_used[node])
        if index.is_spare[node]:
            return score + _SPARE
        if self._policy == "lru":
            return score
        above = self._above.get(node, -1)
        saved = index.position(node) - (0 if above < 0 else index.position(above))
        return score + min(self._uses[node], MOST_USES) * saved / (saved + self._state_tokens)

    def pop(self, kinds: tuple[Kind, ...]) -> tuple[Kind, int] | None:
        """The next victim of one of ``kinds``, which the caller must evict; None where all is busy."""
        parked: list[tuple[Kind, Entry]] = []
        found = None
        while found is None:
            full: list[Kind] = [kind for kind in kinds if self._heaps[kind]]
            if not full:
                break
            kind: Kind = min(full, key=self._first)
            entry = self._heaps[kind][0]
            heapq.heappop(self._heaps[kind])
            score, _, node, generation = entry
            if self._index.generation[node] != generation or not self._is_evictable(kind, node):
                continue
            if node in self.busy and self._index.state[node] >= 0:
                parked.append((kind, entry))
                continue
            found = self._settle(kind, node, score)
        for kind, entry in parked:
            heapq.heappush(self._heaps[kind], entry)
        return found

    def _first(self, kind: Kind) -> Entry:
        return self._heaps[kind][0]

    def _is_evictable(self, kind: Kind, node: int) -> bool:
        return self._is_leaf(node) if kind == "page" else bool(self._index.state[node] >= 0)

    def _settle(self, kind: Kind, node: int, score: float) -> tuple[Kind, int] | None:
        """Take it, or put it back where it was used since."""
        now = self._cells_score(node) if kind == "page" else self._state_score(node)
        if now > score:
            tick = self._index.tick if kind == "page" else self._index.state_tick
            entry = (now, int(tick[node]), node, int(self._index.generation[node]))
            heapq.heappush(self._heaps[kind], entry)
            return None
        self.clock = max(self.clock, now)
        return kind, node
