"""Byte-pair ranks learnt from text, with K3's pre-tokeniser rules on ASCII (spec 7.2).

Only ASCII takes part in learning (Unicode classes change between Python versions); other
characters are spelt by bytes. Ties go to the pair whose bytes sort first, so the result depends on
the text alone.
"""

from __future__ import annotations

import heapq
import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import pairwise

_CONTRACTION = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?"
WORD = re.compile(
    rf"[^\r\nA-Za-z0-9]?[A-Z]*[a-z]+{_CONTRACTION}"
    rf"|[^\r\nA-Za-z0-9]?[A-Z]+[a-z]*{_CONTRACTION}"
    r"|[0-9]{1,3}| ?[^\sA-Za-z0-9]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    re.ASCII,
)
MIN_COUNT = 2


def count_words(texts: Iterable[str]) -> Counter[str]:
    """How often each pre-token occurs in the ASCII texts."""
    words: Counter[str] = Counter()
    for text in texts:
        if text.isascii():
            words.update(WORD.findall(text))
    return words


def learn_ranks(words: Counter[str], num_ranks: int) -> list[bytes]:
    """All 256 bytes first, then the most frequent pair, again and again."""
    learner = _Learner(words)
    while len(learner.tokens) < num_ranks:
        learner.merge_best()
    return learner.tokens


class _Learner:
    """Distinct words as token lists, pair counts, and a heap of pairs (stale entries allowed)."""

    def __init__(self, words: Counter[str]) -> None:
        self.tokens = [bytes([n]) for n in range(256)]
        self._ids = {token: n for n, token in enumerate(self.tokens)}
        kept = sorted((w, c) for w, c in words.items() if c >= MIN_COUNT and len(w) > 1)
        self._words = [(list(w.encode()), c) for w, c in kept]
        self._counts: Counter[tuple[int, int]] = Counter()
        self._where: defaultdict[tuple[int, int], set[int]] = defaultdict(set)
        for n, (word, count) in enumerate(self._words):
            for pair in pairwise(word):
                self._counts[pair] += count
                self._where[pair].add(n)
        self._heap = [self._entry(pair) for pair in self._counts]
        heapq.heapify(self._heap)

    def _entry(self, pair: tuple[int, int]) -> tuple[int, bytes, bytes, tuple[int, int]]:
        return -self._counts[pair], self.tokens[pair[0]], self.tokens[pair[1]], pair

    def merge_best(self) -> None:
        """Turn the most frequent pair into a token (new, unless other parts made its bytes)."""
        while True:
            found = heapq.heappop(self._heap)
            pair = found[3]
            if -found[0] == self._counts.get(pair):
                break
        joined = self.tokens[pair[0]] + self.tokens[pair[1]]
        if joined not in self._ids:
            self._ids[joined] = len(self.tokens)
            self.tokens.append(joined)
        self._replace(pair, self._ids[joined])

    def _replace(self, pair: tuple[int, int], token: int) -> None:
        changed: set[tuple[int, int]] = set()
        for n in self._where.pop(pair):
            word, count = self._words[n]
            for old in pairwise(word):
                self._counts[old] -= count
                changed.add(old)
            _join(word, pair, token)
            for new in pairwise(word):
                self._counts[new] += count
                self._where[new].add(n)
                changed.add(new)
        del self._counts[pair]
        for other in changed:
            if other != pair and self._counts[other] > 0:
                heapq.heappush(self._heap, self._entry(other))


def _join(word: list[int], pair: tuple[int, int], token: int) -> None:
    at = 0
    while at < len(word) - 1:
        if word[at] == pair[0] and word[at + 1] == pair[1]:
            word[at : at + 2] = [token]
        at += 1
