"""An integer stand-in for the model: any stale, shared or misplaced state becomes a wrong token.

    word(t)   a function of token t, the adapter and the media it stands for
    state     s(t) = s(t-1) * A + mix(word(t)), from 0        (mod 2**64; depends on every token)
    cell(t)   mix(word(t) + t * B)                            (token and position)
    output    mix(s(t) + sum over i <= t of cell(i) * weight(i)) % vocab, cells as they are stored

A cell in the wrong place meets the wrong weight, so a permuted page table shows, too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from k3compiler.runtime.cache.unit_keys import Media, Tokens

Words = NDArray[np.uint64]

VOCAB = 163840
_MASK = 2**64 - 1
_A = 0x9E3779B97F4A7C15
_B = 0xD1B54A32D192ED03
_WEIGHT_SEED = 0x8CB92BA72F3D8DD7


def mix(values: Words) -> Words:
    """A bijection of 64-bit words that spreads every bit (splitmix64's finish)."""
    x = values ^ (values >> np.uint64(30))
    x = x * np.uint64(0xBF58476D1CE4E5B9)
    x = x ^ (x >> np.uint64(27))
    x = x * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def mix_one(value: int) -> int:
    """:func:`mix` of one word, modulo 2**64."""
    x = value & _MASK
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & _MASK
    return x ^ (x >> 31)


def text_word(text: str) -> int:
    """A word for a name."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


@cache
def adapter_word_of(adapter: str) -> int:
    """What an adapter adds to every word."""
    return text_word("adapter " + adapter)


def stream_tokens(name: str, start: int, stop: int) -> Tokens:
    """Tokens ``[start, stop)`` of an endless stream; a function of name and position."""
    positions = np.arange(start, stop, dtype=np.uint64)
    values = mix(positions * np.uint64(_B) + np.uint64(text_word(name)))
    return (values % np.uint64(VOCAB)).astype(np.int32)


class Powers:
    """``A**n`` and the positions' weights, as far as they were asked for."""

    def __init__(self) -> None:
        self._powers: Words = np.ones(1, np.uint64)
        self._weights: Words = np.zeros(0, np.uint64)

    def powers(self, count: int) -> Words:
        """``A**0 .. A**(count-1)``."""
        if count > len(self._powers):
            factors = np.full(max(count, 2 * len(self._powers)), _A, np.uint64)
            factors[0] = 1
            self._powers = np.cumprod(factors, dtype=np.uint64)
        return self._powers[:count]

    def weights(self, count: int) -> Words:
        """An odd weight for each of the first ``count`` positions."""
        if count > len(self._weights):
            positions = np.arange(max(count, 2 * len(self._weights)), dtype=np.uint64)
            self._weights = mix(positions + np.uint64(_WEIGHT_SEED)) | np.uint64(1)
        return self._weights[:count]


POWERS = Powers()


def words_of(tokens: Tokens, start: int, adapter: str | None, media: Sequence[Media]) -> Words:
    """What the model sees at positions ``start..`` of a sequence."""
    words = tokens.astype(np.uint64)
    if adapter is not None:
        words = words + np.uint64(adapter_word_of(adapter))
    stop = start + len(tokens)
    for item in media:
        begin, end = max(item.start, start), min(item.stop, stop)
        if begin < end:
            inside = np.arange(begin - item.start, end - item.start, dtype=np.uint64)
            words[begin - start : end - start] += mix(inside + np.uint64(text_word(item.id)))
    return words


def advance(state: int, words: Words) -> int:
    """The state after some more words."""
    count = len(words)
    powers = POWERS.powers(count + 1)
    total = int((mix(words) * powers[:count][::-1]).sum(dtype=np.uint64))
    return (state * int(powers[count]) + total) & _MASK


def advance_each(states: Words, words: Words) -> Words:
    """Many states by one word each."""
    return states * np.uint64(_A) + mix(words)


def cells_at(words: Words, positions: NDArray[np.int64]) -> Words:
    """Cells of single positions."""
    return mix(words + positions.astype(np.uint64) * np.uint64(_B))


def cells_of(words: Words, start: int) -> Words:
    """Cells of positions ``start..``."""
    positions = np.arange(start, start + len(words), dtype=np.uint64)
    return mix(words + positions * np.uint64(_B))


def attend(cells: Words) -> int:
    """The sum over every cell of a sequence, in order."""
    return int((cells * POWERS.weights(len(cells))).sum(dtype=np.uint64))


def choose(state: int, attention: int) -> int:
    """The next token."""
    return mix_one(state + attention) % VOCAB


def cold_run(
    prompt: Tokens, count: int, adapter: str | None = None, media: Sequence[Media] = ()
) -> Tokens:
    """What ``count`` tokens follow a prompt, from nothing and without any cache."""
    words = words_of(prompt, 0, adapter, media)
    state, attention = advance(0, words), attend(cells_of(words, 0))
    found = [choose(state, attention)]
    adapter_word = 0 if adapter is None else adapter_word_of(adapter)
    while len(found) < count:
        position = len(prompt) + len(found) - 1
        word = found[-1] + adapter_word
        state = (state * _A + mix_one(word)) & _MASK
        weight = mix_one(position + _WEIGHT_SEED) | 1
        attention = (attention + mix_one(word + position * _B) * weight) & _MASK
        found.append(choose(state, attention))
    return np.array(found, np.int32)
