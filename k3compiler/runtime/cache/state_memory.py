"""The cache's operations on a device's state buffers, one per layer.

A place of the arena is a row of every buffer of its kind, after row 0, which belongs to nobody
(padding rows of a step own it):

    kda_state.<l>, kda_conv.<l>   row = place of the slot + 1
    mla_cache.<l>                 row = place of the page + 1
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod
from typing import Any

import numpy as np

from k3compiler.dtypes import itemsize
from k3compiler.runtime.cache.ops import (
    CopyCells,
    CopyStates,
    DropHost,
    Ints,
    Kind,
    Move,
    Op,
    Restore,
    Spill,
    ZeroPages,
)
from k3compiler.runtime.device.base import Device, TensorRef

FIRST_ROW = 1


class StateMemory:
    """Views of the state buffers, and what the lower tier keeps.

    Args:
        state: the executor's state buffers by name.

    Attributes:
        state_bytes, token_bytes: of one slot and of one token's cells, over all layers.
    """

    def __init__(self, device: Device, state: Mapping[str, TensorRef]) -> None:
        pages = {n: r for n, r in state.items() if n.startswith("mla_cache.")}
        slots = {n: r for n, r in state.items() if n not in pages}
        self._views: dict[Kind, list[Any]] = {
            "page": [device.tensor(r) for r in pages.values()],
            "state": [device.tensor(r) for r in slots.values()],
        }
        self.state_bytes = max(1, sum(_row_bytes(r) for r in slots.values()))
        tokens = sum(_row_bytes(r) // r.shape[1] for r in pages.values())
        self.token_bytes = max(1, tokens)
        self._host: dict[int, list[Any]] = {}

    def run(self, ops: Iterable[Op]) -> None:
        """Execute in order."""
        for op in ops:
            self._run_one(op)

    def _run_one(self, op: Op) -> None:
        match op:
            case Move(kind, src, dst):
                self._copy(kind, src, dst)
            case CopyStates(src, dst):
                self._copy("state", src, dst)
            case ZeroPages(pages):
                for view in self._views["page"]:
                    view[_rows(pages)] = 0
            case CopyCells(src, dst, count):
                for view in self._views["page"]:
                    view[dst + FIRST_ROW, :count] = view[src + FIRST_ROW, :count]
            case Spill(kind, handle, places, cells):
                self._host[handle] = [
                    _copied(v[_at(kind, places, cells)]) for v in self._views[kind]
                ]
            case Restore(kind, handle, places, cells):
                for view, kept in zip(self._views[kind], self._host[handle], strict=True):
                    view[_at(kind, places, cells)] = _beside(kept, view)
            case DropHost(handle):
                del self._host[handle]

    def _copy(self, kind: Kind, src: Ints, dst: Ints) -> None:
        for view in self._views[kind]:
            view[_rows(dst)] = view[_rows(src)]

    def roll(self, src: Ints, dst: Ints) -> None:
        """Copy live states where decoding stands on a unit boundary (places)."""
        if len(src):
            self._copy("state", src, dst)


def _at(kind: Kind, places: Ints, cells: Ints) -> Any:
    return _rows(places) if kind == "state" else (_rows(places), cells.tolist())


def _rows(places: Ints) -> list[int]:
    return (places + FIRST_ROW).tolist()


def _copied(rows: Any) -> Any:
    """Advanced indexing copies on the device; a torch tensor goes to the host."""
    return rows.copy() if isinstance(rows, np.ndarray) else rows.cpu()


def _beside(kept: Any, view: Any) -> Any:
    """What the host kept, where the view is."""
    return kept if isinstance(kept, np.ndarray) else kept.to(view.device)


def _row_bytes(ref: TensorRef) -> int:
    return prod(ref.shape[1:]) * itemsize(ref.dtype)
