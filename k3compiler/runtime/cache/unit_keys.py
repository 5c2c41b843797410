"""Keys of match units: what identifies ``unit`` tokens after a known parent.

A unit's digest is a universal hash of its tokens. It only finds candidates: the index keys a node by
(parent node, digest, media) and compares the tokens themselves, so neither a different parent nor
different tokens can ever be taken for a match.
Source: Carter, Wegman, "Universal classes of hash functions" (1979).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.int32]

Extra = tuple[tuple[str, int, int], ...]
"""Media in a unit: (id, first token of it relative to the unit's start, end clipped to the unit)."""

Namespace = tuple[str | None, str | None]
"""Salt and adapter: requests of different namespaces share nothing."""


@dataclass(frozen=True, slots=True)
class Media:
    """A media item that stands for the prompt's tokens ``[start, stop)``."""

    id: str
    start: int
    stop: int


@cache
def _multipliers(unit: int) -> NDArray[np.uint64]:
    random = np.random.default_rng(0x6B33)
    return random.integers(0, 2**63, unit, np.uint64) * np.uint64(2) + np.uint64(1)


def unit_digests(units: Tokens) -> NDArray[np.uint64]:
    """A digest per row. Shapes: ``[n, unit] i32 -> [n] u64``."""
    digests = units.astype(np.uint64) @ _multipliers(units.shape[1])
    return digests ^ (digests >> np.uint64(29))


@dataclass(frozen=True, slots=True)
class UnitKeys:
    """The whole units of a sequence, from its start.

    Attributes:
        units: ``[n, unit] i32``. digests: one per unit, as ints.
        extras: media by unit index, for the units that have any.
    """

    namespace: Namespace
    units: Tokens
    digests: list[int]
    extras: dict[int, Extra]

    @classmethod
    def of(
        cls,
        tokens: Tokens,
        unit: int,
        namespace: Namespace = (None, None),
        media: Sequence[Media] = (),
    ) -> UnitKeys:
        """Keys of ``tokens``; what is over the last whole unit has none."""
        count = len(tokens) // unit
        units = tokens[: count * unit].reshape(count, unit)
        digests = unit_digests(units).tolist() if count else []
        return cls(namespace, units, digests, _unit_extras(media, unit, count))

    def __len__(self) -> int:
        return len(self.digests)

    def key(self, parent: int, index: int) -> tuple[int, int] | tuple[int, int, Extra]:
        """The index's key of unit ``index`` below node ``parent``."""
        extra = self.extras.get(index)
        digest = self.digests[index]
        return (parent, digest) if extra is None else (parent, digest, extra)


def _unit_extras(media: Sequence[Media], unit: int, count: int) -> dict[int, Extra]:
    found: dict[int, list[tuple[str, int, int]]] = {}
    for item in media:
        for index in range(item.start // unit, min(count, -(-item.stop // unit))):
            begin = index * unit
            part = (item.id, item.start - begin, min(item.stop - begin, unit))
            found.setdefault(index, []).append(part)
    return {index: tuple(sorted(parts)) for index, parts in found.items()}
