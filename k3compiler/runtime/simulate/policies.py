"""Other engines' prefix reuse, and the upper bound, for comparison: requests one after another.

Each policy is told a request's prompt and output and answers how many prompt tokens it reuses. They
model what decides the hits: which positions get a state, which keys are registered, where chunks
stop, what goes first when bytes run out. A request runs alone, so no effect of batching is modelled
(each would only lower their hits).

``PagedPolicy``   one pool of large pages for both kinds of memory (1,536 tokens a page)
``TreePolicy``    a radix tree of 64-token pages with states on nodes
``BoundPolicy``   unlimited memory, every state at every match unit
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from k3compiler.package.expr import cdiv
from k3compiler.runtime.cache.unit_keys import Tokens, unit_digests

GRID = 64
"""Every position that a policy knows is a multiple of it: the kda chunk."""


@dataclass(frozen=True, slots=True)
class Prefixes:
    """Keys of a sequence's prefixes: ``key(n)`` identifies the first n tokens, n a multiple of 64."""

    keys: list[int]

    @classmethod
    def of(cls, tokens: Tokens) -> Prefixes:
        count = len(tokens) // GRID
        digests = unit_digests(tokens[: count * GRID].reshape(count, GRID)) if count else []
        keys = [0]
        for digest in np.asarray(digests, np.uint64).tolist():
            keys.append(hash((keys[-1], digest)))
        return cls(keys)

    def key(self, position: int) -> int:
        return self.keys[position // GRID]


class ReusePolicy(Protocol):
    """Serves requests one by one."""

    def serve(self, prompt: Tokens, output: Tokens) -> int:
        """Reused prompt tokens; afterwards the request's tokens may be reused by others."""
        ...


class BoundPolicy:
    """The most that any policy with this match unit can reuse (the last token is recomputed)."""

    def __init__(self) -> None:
        self._known: set[int] = {0}

    def serve(self, prompt: Tokens, output: Tokens) -> int:
        whole = Prefixes.of(np.concatenate([prompt, output])[: len(prompt) + len(output) - 1])
        cap = (len(prompt) - 1) // GRID
        depth = 0
        while depth < cap and whole.keys[depth + 1] in self._known:
            depth += 1
        self._known.update(whole.keys)
        return depth * GRID


Kind = Literal["cells", "state"]
Item = tuple[Kind, int]
"""What is cached, by the key of the prefix that it ends."""


class PagedPolicy:
    """Large pages, as unified block pools have them (runtime anchors A1, A3-A7).

    * Cells are keyed at whole pages, and at the prompt's tail, floor((P-1)/unit)*unit.
    * States exist only where a chunk ends: at page multiples and at that tail. Chunks are cut at
      page multiples, and stop at the last page multiple of the prompt, the tail, and the junction
      (where the cells reach further than the state; floored to a page).
    * ``keep_all`` keeps the state of every boundary that a chunk or decoding ends on; otherwise only
      the last page multiple at or below P-1, the tail, and junctions (retention 0).
    * Least recently used pages go first, the tail of a chain before its head.

    Args:
        num_bytes: of the pool. page_tokens: a page; a state takes whole pages.
        unit: match unit of the tail (128 is what is recommended for this model).
    """

    def __init__(
        self, num_bytes: int, *, token_bytes: int, state_bytes: int, page_tokens: int = 1536,
        unit: int = 128, budget: int = 8192, keep_all: bool = False,
    ) -> None:  # fmt: skip
        self._page, self._unit, self._budget = page_tokens, unit, budget
        self._keep_all = keep_all
        self._num_pages = num_bytes // (page_tokens * token_bytes)
        self._state_pages = cdiv(state_bytes, page_tokens * token_bytes)
        self._cached: OrderedDict[Item, int] = OrderedDict()  # -> pages
        self._used = 0

    def serve(self, prompt: Tokens, output: Tokens) -> int:
        whole = Prefixes.of(np.concatenate([prompt, output])[: len(prompt) + len(output) - 1])
        cells, hit = self._lookup(whole, len(prompt))
        self._touch(whole, hit)
        pages = cdiv(len(prompt) + len(output), self._page) + 2 * self._state_pages
        self._make_room(pages - hit // self._page)
        states = self._states(len(prompt), len(output), hit, cells)
        self._register(whole, len(prompt), len(prompt) + len(output) - 1, states)
        return hit

    def _lookup(self, whole: Prefixes, num_prompt: int) -> tuple[int, int]:
        """How far cells agree, and the largest state boundary within."""
        cap, page = num_prompt - 1, self._page
        cells = 0
        while cells + page <= cap and ("cells", whole.key(cells + page)) in self._cached:
            cells += page
        for tail in range(
            min(cap, cells + page - 1) // self._unit * self._unit, cells, -self._unit
        ):
            if ("cells", whole.key(tail)) in self._cached:
                cells = tail
                break
        hit = cells
        while hit > 0 and ("state", whole.key(hit)) not in self._cached:
            hit -= GRID
        return cells, hit

    def _states(self, num_prompt: int, num_output: int, hit: int, cells: int) -> list[int]:
        """Positions whose state is materialised and kept."""
        page = self._page
        last, tail = (num_prompt - 1) // page * page, (num_prompt - 1) // self._unit * self._unit
        junction = cells // page * page if cells > hit else 0
        kept = {last, tail, junction}
        ends: list[int] = []
        at = hit
        while at < num_prompt:
            stop = min(at + self._budget, num_prompt)
            if stop < num_prompt and stop // page * page > at:
                stop = stop // page * page
            stops = [(at // page + 1) * page if at % page else 0, last, tail, junction]
            at = min([stop, *(s for s in stops if at < s < stop)])
            ends.append(at)
        if self._keep_all:
            kept |= {e for e in ends if e % page == 0}
            end = num_prompt + num_output - 1
            kept |= set(range((num_prompt // page + 1) * page, end + 1, page))
            ends += sorted(kept)
        return [e for e in ends if e in kept and e > 0]

    def _register(self, whole: Prefixes, num_prompt: int, end: int, states: list[int]) -> None:
        tail = (num_prompt - 1) // self._unit * self._unit
        boundaries = list(range(self._page, end + 1, self._page))
        items: list[Item] = [("cells", whole.key(b)) for b in boundaries]
        if tail > 0 and tail % self._page:
            items.append(("cells", whole.key(tail)))
        kept: list[Item] = [("state", whole.key(s)) for s in states]
        items += kept
        for item in reversed(items):
            pages = self._state_pages if item[0] == "state" else 1
            if item not in self._cached and self._make_room(pages):
                self._cached[item] = pages
                self._used += pages
            elif item in self._cached:
                self._cached.move_to_end(item)

    def _touch(self, whole: Prefixes, hit: int) -> None:
        for position in (hit, *range(hit // self._page * self._page, 0, -self._page)):
            for kind in ("state", "cells"):
                if (kind, whole.key(position)) in self._cached:
                    self._cached.move_to_end((kind, whole.key(position)))

    def _make_room(self, pages: int) -> bool:
        while self._used + pages > self._num_pages and self._cached:
            self._used -= self._cached.popitem(last=False)[1]
        return self._used + pages <= self._num_pages


class TreePolicy:
    """A radix tree of 64-token pages, one state per extend (runtime anchors A6, A8, A9).

    * Cells match page by page; a hit needs a state at its end.
    * A prefill chunk leaves one state: at floor(end/64)*64, or at the branch point (where the cells
      reach further than the state) if the chunk passes it.
    * Decoding leaves the state of the last multiple of ``interval``; what is cached of a finished
      request ends at its last state.
    * Least recently used first: leaves of cells, states from anywhere.
    """

    def __init__(
        self, num_bytes: int, *, token_bytes: int, state_bytes: int, interval: int = 256,
        budget: int = 8192,
    ) -> None:  # fmt: skip
        self._num_bytes, self._interval, self._budget = num_bytes, interval, budget
        self._bytes: dict[Kind, int] = {"cells": GRID * token_bytes, "state": state_bytes}
        self._cached: OrderedDict[Item, int] = OrderedDict()
        self._kids: dict[int, int] = {}
        self._parent: dict[int, int] = {}
        self._used = 0

    def serve(self, prompt: Tokens, output: Tokens) -> int:
        whole = Prefixes.of(np.concatenate([prompt, output])[: len(prompt) + len(output) - 1])
        cells, hit = self._lookup(whole, len(prompt))
        self._touch(whole, hit)
        total = cdiv(len(prompt) + len(output), GRID) * self._bytes["cells"]
        self._make_room(total - hit // GRID * self._bytes["cells"] + 3 * self._bytes["state"])
        for position in self._states(len(prompt), len(output), hit, cells):
            self._insert(whole, position)
        return hit

    def _lookup(self, whole: Prefixes, num_prompt: int) -> tuple[int, int]:
        cap = (num_prompt - 1) // GRID * GRID
        cells = 0
        while cells < cap and ("cells", whole.key(cells + GRID)) in self._cached:
            cells += GRID
        hit = cells
        while hit > 0 and ("state", whole.key(hit)) not in self._cached:
            hit -= GRID
        return cells, hit

    def _states(self, num_prompt: int, num_output: int, hit: int, cells: int) -> list[int]:
        found: list[int] = []
        at = hit
        while at < num_prompt:
            stop = min(at + self._budget // GRID * GRID, num_prompt)
            tracked = cells if at < cells <= stop and cells > hit else stop // GRID * GRID
            if tracked > at:
                found.append(tracked)
            at = stop
        decoded = (num_prompt + num_output - 1) // self._interval * self._interval
        return [*found, decoded] if decoded > num_prompt else found

    def _insert(self, whole: Prefixes, position: int) -> None:
        for at in range(GRID, position + 1, GRID):
            key = whole.key(at)
            if ("cells", key) in self._cached:
                continue
            if not self._make_room(self._bytes["cells"]) or not self._has_parent(whole, at):
                return
            self._put("cells", key)
            self._parent[key] = whole.key(at - GRID)
            self._kids[whole.key(at - GRID)] = self._kids.get(whole.key(at - GRID), 0) + 1
        state = ("state", whole.key(position))
        is_new = state not in self._cached and self._make_room(self._bytes["state"])
        if is_new and ("cells", state[1]) in self._cached:
            self._put("state", state[1])

    def _has_parent(self, whole: Prefixes, at: int) -> bool:
        return at == GRID or ("cells", whole.key(at - GRID)) in self._cached

    def _put(self, kind: Kind, key: int) -> None:
        self._cached[kind, key] = self._bytes[kind]
        self._used += self._bytes[kind]

    def _touch(self, whole: Prefixes, hit: int) -> None:
        if hit:
            self._cached.move_to_end(("state", whole.key(hit)))
        for at in range(hit, 0, -GRID):
            self._cached.move_to_end(("cells", whole.key(at)))

    def _make_room(self, num_bytes: int) -> bool:
        while self._used + num_bytes > self._num_bytes:
            victim = next((i for i in self._cached if self._may_go(i)), None)
            if victim is None:
                return False
            self._drop(victim)
        return True

    def _may_go(self, item: Item) -> bool:
        return item[0] == "state" or not self._kids.get(item[1])

    def _drop(self, item: Item) -> None:
        kind, key = item
        self._used -= self._cached.pop(item)
        if kind == "cells":
            self._kids[self._parent.pop(key)] -= 1
            if ("state", key) in self._cached:
                self._drop(("state", key))
