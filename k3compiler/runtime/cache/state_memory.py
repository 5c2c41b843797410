"""The cache's operations on the bytes of a device: copies within one buffer, and to the host.

Places are the arena's, rows are what kernels see of them: ``cache/layout.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from k3compiler.runtime.cache.layout import CacheMap
from k3compiler.runtime.cache.ops import (
    Array,
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
from k3compiler.runtime.device.base import Buffer, Device, TensorRef


class StateMemory:
    """Views of the buffer's bytes, and what the lower tier keeps.

    Whole slots and pages are copied and cleared one by one (a memory copy each, in order on the
    device's stream); only cells are gathered.

    Attributes:
        map: where everything lies.
    """

    def __init__(self, device: Device, buffer: Buffer, where: CacheMap) -> None:
        self.map = where
        layout = where.layout
        whole = device.tensor(TensorRef(buffer, "i8", (where.num_bytes,)))
        slots = whole[where.slots_at :][: where.num_slot_rows * layout.slot_bytes]
        pages = whole.reshape(where.num_page_rows, layout.page_bytes)
        self._rows: dict[Kind, Any] = {
            "state": slots.reshape(where.num_slot_rows, layout.slot_bytes),
            "page": pages,
        }
        cells = (where.num_page_rows, layout.num_mla_layers, -1, max(1, layout.cell_bytes))
        self._cells = pages.reshape(cells) if layout.num_mla_layers else pages[:, None, None]
        self._host: dict[int, Any] = {}

    def write_cells(self, pages: Ints, cells: Ints, values: Array) -> None:
        """Fill cells of the last layers, by rows of pages. Shapes: ``values [n, layers, row]``."""
        raw = np.ascontiguousarray(values).view(np.uint8)
        own = raw if isinstance(self._cells, np.ndarray) else self._cells.new_tensor(raw)
        self._cells[pages.tolist(), -values.shape[1] :, cells.tolist()] = own

    def read_cells(self, pages: Ints, num_layers: int, dtype: np.dtype[Any]) -> Array:
        """A host copy of the last layers' cells. Shapes: ``[n, layers, cells, row]``."""
        found = self._cells[pages.tolist(), -num_layers:]
        return (found if isinstance(found, np.ndarray) else found.cpu().numpy()).view(dtype)

    def slot_rows(self, places: Ints) -> Ints:
        """The rows of slots."""
        return places + self.map.first_slot_row

    def page_rows(self, places: Ints) -> Ints:
        """The rows of pages."""
        return self.map.num_page_rows - 1 - places

    def _rows_of(self, kind: Kind, places: Ints) -> Ints:
        return self.slot_rows(places) if kind == "state" else self.page_rows(places)

    def run(self, ops: Iterable[Op]) -> None:
        """Execute in order."""
        for op in ops:
            self._run_one(op)

    def _run_one(self, op: Op) -> None:
        match op:
            case Move(kind, src, dst):
                self._copy(kind, self._rows_of(kind, src), self._rows_of(kind, dst))
            case CopyStates(src, dst):
                self.copy_slots(self.slot_rows(src), self.slot_rows(dst))
            case ZeroPages(places):
                for begin, end in _runs(self.page_rows(places)):
                    self._rows["page"][begin:end] = 0
            case CopyCells(src, dst, count):
                own, other = self.page_rows(np.array([dst, src])).tolist()
                self._cells[own, :, :count] = self._cells[other, :, :count]
            case Spill(kind, handle, places, cells):
                self._host[handle] = _to_host(self._part(kind, places, cells))
            case Restore(kind, handle, places, cells):
                self._restore(kind, self._host[handle], places, cells)
            case DropHost(handle):
                del self._host[handle]

    def _copy(self, kind: Kind, src: Ints, dst: Ints) -> None:
        rows = self._rows[kind]
        for own, other in zip(dst.tolist(), src.tolist(), strict=True):
            rows[own] = rows[other]

    def copy_slots(self, src: Ints, dst: Ints) -> None:
        """Whole slots, by rows, one after another."""
        self._copy("state", src, dst)

    def _part(self, kind: Kind, places: Ints, cells: Ints) -> Any:
        """A slot ``[slot bytes]``, or cells ``[n, layers, cell bytes]`` (those are a copy)."""
        rows = self._rows_of(kind, places).tolist()
        if kind == "state":
            return self._rows["state"][rows[0]]
        return self._cells[rows, :, cells.tolist()]

    def _restore(self, kind: Kind, kept: Any, places: Ints, cells: Ints) -> None:
        rows = self._rows_of(kind, places).tolist()
        if kind == "state":
            self._rows["state"][rows[0]] = _to_device(kept, self._cells)
        else:
            self._cells[rows, :, cells.tolist()] = _to_device(kept, self._cells)


def _runs(rows: Ints) -> Iterator[tuple[int, int]]:
    """``[begin, end)`` of neighbouring rows."""
    ordered = np.sort(rows)
    for run in np.split(ordered, np.flatnonzero(np.diff(ordered) != 1) + 1):
        if len(run):
            yield int(run[0]), int(run[-1]) + 1


def _to_host(part: Any) -> Any:
    """A copy in host memory, pinned where the part is on a GPU: nobody waits for it."""
    if isinstance(part, np.ndarray):
        return part.copy()
    host = part.new_empty(part.shape, device="cpu", pin_memory=part.is_cuda)
    return host.copy_(part, non_blocking=True)


def _to_device(kept: Any, like: Any) -> Any:
    if isinstance(kept, np.ndarray):
        return kept
    return kept.to(like.device, non_blocking=True)
