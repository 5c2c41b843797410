"""What the cache asks of a device's memory, in order: moves, zeroes, copies, spills, restores.

Operations name physical places and run strictly in the order of the list, before the step's
kernels; the kernels see virtual ids through the tables as they are after the last operation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Array = NDArray[Any]
Kind = Literal["state", "page"]


@dataclass(frozen=True, slots=True)
class Move:
    """Compaction: contents of ``src`` places go to ``dst`` places (holes; the two are disjoint)."""

    kind: Kind
    src: Ints
    dst: Ints


@dataclass(frozen=True, slots=True)
class ZeroPages:
    """Pages that were handed out: they read as zero."""

    pages: Ints


@dataclass(frozen=True, slots=True)
class CopyStates:
    """Whole KDA slots, ``src[i]`` to ``dst[i]``."""

    src: Ints
    dst: Ints


@dataclass(frozen=True, slots=True)
class CopyCells:
    """The first ``count`` cells of one page."""

    src: int
    dst: int
    count: int


@dataclass(frozen=True, slots=True)
class Spill:
    """Device to host: a slot, or the cells of one match unit (pages and cells, same length)."""

    kind: Kind
    handle: int
    places: Ints
    cells: Ints


@dataclass(frozen=True, slots=True)
class Restore:
    """Host to device, the mirror of :class:`Spill`; the host copy is given up."""

    kind: Kind
    handle: int
    places: Ints
    cells: Ints


@dataclass(frozen=True, slots=True)
class DropHost:
    """The host copy is forgotten."""

    handle: int


Op = Move | ZeroPages | CopyStates | CopyCells | Spill | Restore | DropHost
