"""Where a tile lies in a buffer, and reading and writing it a few lanes at a time.

Nothing outside the buffer's extents (or past a limit) is ever touched: whole lanes go through masks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import gcd

from k3compiler.targets.cpu.arithmetic import literal
from k3compiler.targets.cpu.formats import BYTES, Lanes
from k3compiler.targets.cpu.graph import Access, Value
from k3compiler.targets.cpu.state import State, memory_element
from k3compiler.targets.cpu.text import vector


@dataclass(slots=True)
class Axis:
    """One tile dim in memory: offsets ``low <= i < high`` are inside (None: no check needed).

    ``divisor`` divides ``high``.
    """

    extent: int
    start: str
    stride: str
    low: str | None
    high: str | None
    divisor: int = 1


@dataclass(slots=True)
class Region:
    """A tile's place in a buffer, as i64 values. ``pointer`` is element (0, 0), or row 0 of a gather."""

    access: Access
    pointer: str
    row: Axis
    column: Axis
    element: str
    align: int

    @property
    def is_gather(self) -> bool:
        return self.access.rows is not None

    @property
    def is_whole(self) -> bool:
        """Every element is inside, as far as can be proven here."""
        axes = (self.row, self.column)
        return not self.is_gather and all(a.low is None and a.high is None for a in axes)


def locate(s: State, access: Access, shape: tuple[int, ...]) -> Region:
    """Emits the address arithmetic of a load or store (once, before its loops)."""
    w, buffer = s.w, access.buffer
    strides = s.strides(buffer)
    axes = [_axis(s, access, shape, i, strides) for i in range(len(shape))]
    one = Axis(1, w.i64(0), w.i64(0), None, None)
    if not shape:
        axes = [one, one]
    elif len(shape) == 1:
        axes = [*axes, one] if access.rows is not None else [one, *axes]
    elif shape[1] == 1 and shape[0] > 1 and access.rows is None:
        axes = _as_run(s, axes)
    offset = w.i64(0)
    for dim, index in enumerate(access.indices):
        is_gathered = access.rows is not None and bool(access.dims) and dim == access.dims[0]
        if not is_gathered:
            offset = w.add(offset, w.mul(s.wide(index), strides[dim]))
    element = memory_element(buffer.dtype)
    pointer = w.address(s.pointers[buffer.name], offset, element)
    return Region(access, pointer, axes[0], axes[1], element, BYTES[buffer.dtype])


def _as_run(s: State, axes: list[Axis]) -> list[Axis]:
    """A column [M, 1] as a run of M: its one column must be inside for any of it to be."""
    w, (rows, column) = s.w, axes
    if column.low is None and column.high is None:
        return [Axis(1, w.i64(0), w.i64(0), None, None), rows]
    return [Axis(1, column.start, column.stride, column.low, column.high), rows]


def _axis(s: State, access: Access, shape: tuple[int, ...], axis: int, strides: list[str]) -> Axis:
    w, dim, size = s.w, access.dims[axis], shape[axis]
    index, extent = access.indices[dim], access.buffer.extents[dim]
    start = s.wide(index)
    first, last = s.ranges.of(index)
    is_gathered = axis == 0 and access.rows is not None
    end, ends = s.extent(extent), [s.ranges.extent(extent)[0]]
    divisor = gcd(s.ranges.divisor(extent), s.ranges.divisor(index))
    if access.limits:
        limit = access.limits[axis]
        end = w.emit(f"arith.minsi {end}, {s.wide(limit)} : i64")
        ends.append(s.ranges.of(limit)[0])
        divisor = gcd(divisor, s.ranges.divisor(limit))
    if is_gathered:
        return Axis(size, start, strides[dim], None, end)
    fits = last + size <= min(ends)
    low = None if first >= 0 else w.sub(w.i64(0), start)
    return Axis(size, start, strides[dim], low, None if fits else w.sub(end, start), divisor)


# -- lanes ---------------------------------------------------------------------------------------
@dataclass(slots=True)
class Row:
    """One row of a region: its first element and the i32 bounds of what is inside it (None: all)."""

    pointer: str
    low: str | None
    high: str | None


def open_row(s: State, region: Region, row: str, gathered: Callable[[Value], str]) -> Row:
    """The row's address and bounds; ``gathered`` evaluates the tile of row numbers at this row."""
    w, zero = s.w, s.w.i64(0)
    inside: list[str] = []
    rows = region.access.rows
    if rows is not None:
        row = w.add(w.widen(gathered(rows)), region.row.start)
        inside.append(w.emit(f"arith.cmpi ult, {row}, {_at_least_zero(s, region.row.high)} : i64"))
    else:
        if region.row.low is not None:
            inside.append(w.emit(f"arith.cmpi sge, {row}, {region.row.low} : i64"))
        if region.row.high is not None:
            inside.append(w.emit(f"arith.cmpi slt, {row}, {region.row.high} : i64"))
    pointer = w.address(region.pointer, w.mul(row, region.row.stride), region.element)
    extent = w.i64(region.column.extent)
    low, high = region.column.low, region.column.high
    if high is None and not inside:
        bound = None
    else:
        bound = extent if high is None else w.clamp(high, 0, extent)
        for condition in inside:
            bound = w.emit(f"arith.select {condition}, {bound}, {zero} : i64")
        bound = w.narrow(bound)
    return Row(pointer, None if low is None else w.narrow(w.clamp(low, 0, extent)), bound)


def _at_least_zero(s: State, value: str | None) -> str:
    assert value is not None
    return s.w.emit(f"arith.maxsi {value}, {s.w.i64(0)} : i64")


def mask(s: State, row: Row, column: str, width: int | None) -> str | None:
    """Which lanes from ``column`` (i64) on are inside; None for all of them."""
    if row.low is None and row.high is None:
        return None
    w, lanes = s.w, Lanes(s.w, width)
    place = w.narrow(column)
    if width is not None:
        start = w.emit(f"vector.broadcast {place} : i32 to {lanes.i32}")
        place = lanes.int("addi", start, w.lanes(width))
    conditions: list[str] = []
    for predicate, bound in (("sge", row.low), ("slt", row.high)):
        if bound is None:
            continue
        if width is not None:
            bound = w.emit(f"vector.broadcast {bound} : i32 to {lanes.i32}")
        conditions.append(lanes.compare_int(predicate, place, bound))
    if len(conditions) == 1:
        return conditions[0]
    return w.emit(f"arith.andi {conditions[0]}, {conditions[1]} : {lanes.i1}")


def load_lanes(s: State, region: Region, row: Row, column: str, width: int | None) -> str:
    """Lanes ``column ..`` of a row (register type of the buffer's dtype); ``other`` outside."""
    w, kind = s.w, vector(width, region.element)
    offset = w.mul(column, region.column.stride)
    pointer = w.address(row.pointer, offset, region.element)
    if _is_whole(row):
        return w.load(pointer, kind, region.align)
    text = literal(region.access.other, region.access.buffer.dtype)
    if _wants_window(s, region, width):
        return _load_window(s, region, row, column, pointer, text, width or 1)
    inside, other = mask(s, row, column, width), w.constant(text, kind)
    assert inside is not None
    if width is None:
        return w.choose(
            inside, [kind], lambda: [w.load(pointer, kind, region.align)], lambda: [other]
        )[0]
    return w.emit(
        f"llvm.intr.masked.load {pointer}, {inside}, {other} {{alignment = {region.align} : i32}} : "
        f"(!llvm.ptr, {vector(width, 'i1')}, {kind}) -> {kind}"
    )


def store_lanes(
    s: State, region: Region, row: Row, column: str, width: int | None, value: str
) -> None:
    """The mirror of :func:`load_lanes`."""
    w, kind = s.w, vector(width, region.element)
    offset = w.mul(column, region.column.stride)
    pointer = w.address(row.pointer, offset, region.element)
    if _is_whole(row):
        w.store(value, pointer, kind, region.align)
        return
    if _wants_window(s, region, width):
        _store_window(s, region, row, column, pointer, value, width or 1)
        return
    inside = mask(s, row, column, width)
    assert inside is not None
    if width is None:
        with w.when(inside):
            w.store(value, pointer, kind, region.align)
    else:
        w.do(
            f"llvm.intr.masked.store {value}, {pointer}, {inside} {{alignment = {region.align} : i32}} : "
            f"{kind}, {vector(width, 'i1')} into !llvm.ptr"
        )


def _is_whole(row: Row) -> bool:
    return row.low is None and row.high is None


# -- narrow lanes without masks ------------------------------------------------------------------
# AVX2 masks 32-bit lanes only: bytes and half words at an edge go through a small window, one by one.
def _wants_window(s: State, region: Region, width: int | None) -> bool:
    return width is not None and width > 1 and not s.has_avx512 and region.align < 4


def _window(s: State, row: Row, column: str, width: int) -> tuple[str, str, str]:
    """First and last lane inside (i64), and whether that is all of them (i1)."""
    w, size = s.w, s.w.i64(width)
    low = w.i64(0) if row.low is None else w.clamp(w.sub(w.widen(row.low), column), 0, size)
    high = size if row.high is None else w.clamp(w.sub(w.widen(row.high), column), 0, size)
    count = w.sub(high, low)
    return low, high, w.emit(f"arith.cmpi eq, {count}, {size} : i64")


def _load_window(
    s: State, region: Region, row: Row, column: str, pointer: str, other: str, width: int
) -> str:
    w, kind, element = s.w, vector(width, region.element), region.element
    low, high, is_full = _window(s, row, column, width)
    scratch = s.scratch(width, region.access.buffer.dtype)

    def partly() -> list[str]:
        w.store(w.constant(other, kind), scratch.pointer, kind, region.align)
        _copy_lanes(s, element, region.align, pointer, scratch.pointer, low, high)
        return [w.load(scratch.pointer, kind, region.align)]

    return w.choose(is_full, [kind], lambda: [w.load(pointer, kind, region.align)], partly)[0]


def _store_window(
    s: State, region: Region, row: Row, column: str, pointer: str, value: str, width: int
) -> None:
    w, kind, element = s.w, vector(width, region.element), region.element
    low, high, is_full = _window(s, row, column, width)
    scratch = s.scratch(width, region.access.buffer.dtype)

    def whole() -> list[str]:
        w.store(value, pointer, kind, region.align)
        return []

    def partly() -> list[str]:
        w.store(value, scratch.pointer, kind, region.align)
        _copy_lanes(s, element, region.align, scratch.pointer, pointer, low, high)
        return []

    w.choose(is_full, [], whole, partly)


def _copy_lanes(
    s: State, element: str, align: int, source: str, target: str, low: str, high: str
) -> None:
    """Elements ``low .. high`` of ``source`` to the same places of ``target``."""

    def build(names: list[str]) -> None:
        w = s.w
        with w.loop(names[2], names[3], w.i64(1)) as loop:
            value = w.load(w.address(names[0], loop.index, element), element, align)
            w.store(value, w.address(names[1], loop.index, element), element, align)

    arguments = [(source, "!llvm.ptr"), (target, "!llvm.ptr"), (low, "i64"), (high, "i64")]
    s.call(f"copy_{element}", arguments, build)
