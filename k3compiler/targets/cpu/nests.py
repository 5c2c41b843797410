"""The loop nests of what is not lazy: storing, materialising, reducing, scanning, transposing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from k3compiler.targets.cpu.evaluate import At, Nest, lanes_of, load_slot, store_slot
from k3compiler.targets.cpu.formats import BYTES, kind_of
from k3compiler.targets.cpu.graph import Op, Value
from k3compiler.targets.cpu.memory import load_lanes, locate, open_row, store_lanes
from k3compiler.targets.cpu.plan import is_strided
from k3compiler.targets.cpu.state import Slot, State
from k3compiler.targets.cpu.text import vector

Visit = Callable[[Nest, At], None]
Kind = Literal["add", "max", "min"]


def visit(
    s: State, value: Value, body: Visit, *, rows: str | None = None, columns: str | None = None
) -> None:
    """Runs ``body`` for every row of lanes of ``value``'s shape; ``rows`` and ``columns`` (i64) end it early."""
    nest, w = Nest(s), s.w
    if value.matrix is None:
        width = lanes_of(value.size)
        _lanes(nest, columns or w.i64(value.size), width, body, None)
        return
    extent_rows, extent_columns = value.matrix
    width = lanes_of(extent_columns)
    with nest.rows(nest.zero, rows or w.i64(extent_rows)) as row:
        _lanes(nest, columns or w.i64(extent_columns), width, body, row)


def _lanes(nest: Nest, columns: str, width: int, body: Visit, row: str | None) -> None:
    w = nest.w
    if columns == w.i64(width):
        body(nest, At(row, nest.zero, width))
        return
    with w.loop(nest.zero, columns, w.i64(width)) as loop:
        body(nest, At(row, loop.index, width))


# -- memory --------------------------------------------------------------------------------------
def materialize(
    s: State, value: Value, slot: Slot, *, convert: Callable[[str, int | None], str] | None = None,
    rows: str | None = None,
) -> None:  # fmt: skip
    """Evaluates a lazy tile into a buffer; ``convert`` changes lanes before they are stored."""
    op = value.op
    if (
        op is not None
        and op.access is not None
        and is_strided(op.access, value.shape)
        and s.slot_of(value) is None
    ):
        _load_strided(s, op, slot)
        return

    def body(nest: Nest, at: At) -> None:
        lanes = nest.value(value, at)
        if convert is not None:
            lanes = convert(lanes, at.width)
        store_slot(s, slot, nest.offset(value, at), at.width, lanes)

    visit(s, value, body, rows=rows)


def copy(s: State, source: Slot, target: Slot, size: int) -> None:
    """Copies ``size`` elements between buffers."""
    w, width = s.w, lanes_of(size)
    with w.loop(w.i64(0), w.i64(size), w.i64(width)) as loop:
        store_slot(s, target, loop.index, width, load_slot(s, source, loop.index, width))


def _load_strided(s: State, op: Op, slot: Slot) -> None:
    """A load whose neighbours lie apart in memory, one element at a time."""
    assert op.access is not None
    nest, w = Nest(s), s.w
    region = locate(s, op.access, op.result.shape)
    with nest.rows(nest.zero, w.i64(region.row.extent)) as row:
        opened = open_row(s, region, row, lambda rows: nest.value(rows, At(None, row, None)))
        first = w.mul(row, w.i64(region.column.extent))
        with w.loop(nest.zero, w.i64(region.column.extent), w.i64(1)) as loop:
            value = load_lanes(s, region, opened, loop.index, None)
            store_slot(s, slot, w.add(first, loop.index), None, value)


def store(s: State, op: Op) -> None:
    """``tile.store`` of a tile or a scalar."""
    assert op.access is not None
    value = op.operands[0]
    if value.shape == ():
        region = locate(s, op.access, ())
        s.w.store(s.scalar(value), region.pointer, region.element, region.align)
    elif is_strided(op.access, value.shape):
        _store_strided(s, op, value)
    else:
        _store_rows(s, op, value)


def _store_rows(s: State, op: Op, value: Value) -> None:
    assert op.access is not None
    region = locate(s, op.access, value.shape)
    w = s.w
    rows = columns = None
    if value.matrix is not None and region.row.high is not None and not region.is_gather:
        rows = w.clamp(region.row.high, 0, w.i64(region.row.extent))
    if region.column.high is not None:
        columns = w.clamp(region.column.high, 0, w.i64(region.column.extent))

    def body(nest: Nest, at: At) -> None:
        lanes = nest.value(value, at)
        store_lanes(
            s,
            nest.region(op, value.shape),
            nest.row(op, value.shape, at),
            at.column,
            at.width,
            lanes,
        )

    visit(s, value, body, rows=rows, columns=columns)


def _store_strided(s: State, op: Op, value: Value) -> None:
    assert op.access is not None
    nest, w = Nest(s), s.w
    region = locate(s, op.access, value.shape)
    with nest.rows(nest.zero, w.i64(region.row.extent)) as row:
        opened = open_row(s, region, row, lambda rows: nest.value(rows, At(None, row, None)))
        with w.loop(nest.zero, w.i64(region.column.extent), w.i64(1)) as loop:
            if value.matrix is not None:
                at = At(row, loop.index, None)
            else:
                at = At(
                    None, row if region.is_gather and region.row.extent > 1 else loop.index, None
                )
            store_lanes(s, region, opened, loop.index, None, nest.value(value, at))


# -- along an axis -------------------------------------------------------------------------------
def combine(s: State, kind: Kind, dtype: str, a: str, b: str, width: int | None) -> str:
    """One step of a reduction."""
    w, lanes = s.w, kind_of(dtype, width)
    if kind == "add":
        return w.emit(f"arith.add{'f' if dtype == 'f32' else 'i'} {a}, {b} : {lanes}")
    if dtype != "f32":
        return w.emit(f"arith.{kind}si {a}, {b} : {lanes}")
    above = w.emit(f"arith.cmpf {'ogt' if kind == 'max' else 'olt'}, {a}, {b} : {lanes}")
    head = "" if width is None else f"{vector(width, 'i1')}, "
    return w.emit(f"arith.select {above}, {a}, {b} : {head}{lanes}")


def identity(s: State, kind: Kind, dtype: str, width: int | None) -> str:
    """What a reduction starts from."""
    floats = {"add": "0.0", "max": "0xFF800000", "min": "0x7F800000"}
    ints = {"add": "0", "max": str(-(2**31)), "min": str(2**31 - 1)}
    return s.w.constant((floats if dtype == "f32" else ints)[kind], kind_of(dtype, width))


def slice_lanes(
    s: State, lanes: str, width: int, first: int, count: int, dtype: str = "f32"
) -> str:
    """``count`` neighbouring lanes of a vector."""
    if count == width:
        return lanes
    return s.w.emit(
        f"vector.extract_strided_slice {lanes} {{offsets = [{first}], sizes = [{count}], strides = [1]}} : "
        f"{kind_of(dtype, width)} to {kind_of(dtype, count)}"
    )


def across(s: State, kind: Kind, dtype: str, lanes: str, width: int) -> str:
    """All lanes combined into one scalar, by halves (a fixed order, the same on every level)."""
    while width > 1:
        half = width // 2
        low, high = (slice_lanes(s, lanes, width, first, half, dtype) for first in (0, half))
        lanes, width = combine(s, kind, dtype, low, high, half), half
    return s.w.emit(f"vector.extract {lanes}[0] : {kind_of(dtype, None)} from {kind_of(dtype, 1)}")


def sums_of(s: State, vectors: list[str], width: int) -> str:
    """The sums over the lanes of each vector (a power of two of them), as the lanes of one.

    Each is summed by halves as in :func:`across`; the halves of two vectors share one addition.
    """
    w, parts = s.w, width  # lanes that are left of each
    while parts > 1:
        half = parts // 2
        size = width if len(vectors) == 1 else 2 * width
        groups = range(0, size, parts)
        low = [g + i for g in groups for i in range(half)]
        pairs = zip(vectors[::2], vectors[1::2] or vectors, strict=True)
        kind, done = kind_of("f32", width), list[str]()
        for a, b in pairs:
            left, right = (
                w.emit(f"vector.shuffle {a}, {b} {picks} : {kind}, {kind}")
                for picks in (low, [i + half for i in low])
            )
            done.append(combine(s, "add", "f32", left, right, len(low)))
        vectors, width, parts = done, len(low), half
    return vectors[0]


def reduce(s: State, op: Op, slot: Slot | None) -> str | None:
    """``tile.reduce`` into a buffer, or to a scalar (returned) where there is none."""
    value, axis = op.operands[0], op.attributes["axis"].value
    kind: Kind = op.attributes["kind"].value
    if value.matrix is None:
        extent = value.shape[axis]
        if extent == 1 and slot is not None:
            materialize(s, value, slot)
            return None
        total = _reduce_row(s, Nest(s), value, kind, None)
        if slot is None:
            return total
        store_slot(s, slot, s.w.i64(0), None, total)
        return None
    assert slot is not None
    if axis == 0:
        _reduce_down(s, value, kind, slot)
        return None
    nest = Nest(s)
    with nest.rows(nest.zero, s.w.i64(value.matrix[0])) as row:
        store_slot(s, slot, row, None, _reduce_row(s, nest, value, kind, row))
    return None


def _reduce_row(s: State, nest: Nest, value: Value, kind: Kind, row: str | None) -> str:
    """One row (or a whole run) to a scalar; cheap rows run in four independent sums."""
    w, dtype = s.w, value.dtype
    columns = value.matrix[1] if value.matrix else value.size
    width = lanes_of(columns)
    chains = min(4 if s.plan.cost(value) <= 8 else 1, columns // width)
    lanes = kind_of(dtype, width)
    start = identity(s, kind, dtype, width)
    with w.loop(
        nest.zero, w.i64(columns), w.i64(width * chains), carry=[(start, lanes)] * chains
    ) as loop:
        sums: list[str] = []
        for chain, total in enumerate(loop.carried):
            at = At(row, w.add(loop.index, w.i64(chain * width)), width)
            sums.append(combine(s, kind, dtype, total, nest.value(value, at), width))
        w.carry_on(loop, sums)
    totals = loop.results
    while len(totals) > 1:
        pairs = zip(totals[::2], totals[1::2], strict=True)
        totals = [combine(s, kind, dtype, a, b, width) for a, b in pairs]
    return across(s, kind, dtype, totals[0], width)


def _reduce_down(s: State, value: Value, kind: Kind, slot: Slot) -> None:
    """Rows added up into a buffer, lane by lane."""
    assert value.matrix is not None
    w, (_, columns) = s.w, value.matrix
    width = lanes_of(columns)
    start = identity(s, kind, value.dtype, width)
    with w.loop(w.i64(0), w.i64(columns), w.i64(width)) as loop:
        store_slot(s, slot, loop.index, width, start)

    def body(nest: Nest, at: At) -> None:
        total = load_slot(s, slot, at.column, at.width)
        total = combine(s, kind, value.dtype, total, nest.value(value, at), at.width)
        store_slot(s, slot, at.column, at.width, total)

    visit(s, value, body)


def scan(s: State, op: Op, slot: Slot) -> None:
    """``tile.scan``: the inclusive cumulative sum along one axis."""
    value, axis = op.operands[0], op.attributes["axis"].value
    if value.shape[axis] == 1:
        materialize(s, value, slot)
    elif value.matrix is not None and axis == 0:
        _scan_down(s, value, slot)
    else:
        _scan_along(s, value, slot)


def _scan_down(s: State, value: Value, slot: Slot) -> None:
    assert value.matrix is not None
    w, (_, columns) = s.w, value.matrix
    width = lanes_of(columns)
    total = s.allocate(columns, value.dtype)
    with w.loop(w.i64(0), w.i64(columns), w.i64(width)) as loop:
        store_slot(s, total, loop.index, width, identity(s, "add", value.dtype, width))

    def body(nest: Nest, at: At) -> None:
        before = load_slot(s, total, at.column, at.width)
        after = combine(s, "add", value.dtype, before, nest.value(value, at), at.width)
        store_slot(s, total, at.column, at.width, after)
        store_slot(s, slot, nest.offset(value, at), at.width, after)

    visit(s, value, body)
    s.release(total)


def _scan_along(s: State, value: Value, slot: Slot) -> None:
    """Lanes are summed by doubling steps, then the sum so far is added."""
    w, nest, dtype = s.w, Nest(s), value.dtype
    columns = value.matrix[1] if value.matrix else value.size
    width = lanes_of(columns)

    def run(row: str | None) -> None:
        start = identity(s, "add", dtype, None)
        with w.loop(
            nest.zero, w.i64(columns), w.i64(width), carry=[(start, kind_of(dtype, None))]
        ) as loop:
            at = At(row, loop.index, width)
            sums = _prefix_sums(s, dtype, nest.value(value, at), width)
            before = w.emit(
                f"vector.broadcast {loop.carried[0]} : {kind_of(dtype, None)} to {kind_of(dtype, width)}"
            )
            sums = combine(s, "add", dtype, sums, before, width)
            store_slot(s, slot, nest.offset(value, at), width, sums)
            last = f"vector.extract {sums}[{width - 1}] : {kind_of(dtype, None)} from {kind_of(dtype, width)}"
            w.carry_on(loop, [w.emit(last)])

    if value.matrix is None:
        run(None)
        return
    with nest.rows(nest.zero, w.i64(value.matrix[0])) as row:
        run(row)


def _prefix_sums(s: State, dtype: str, lanes: str, width: int) -> str:
    kind, zero, step = kind_of(dtype, width), identity(s, "add", dtype, width), 1
    while step < width:
        picks = [width + i - step if i >= step else 0 for i in range(width)]
        shifted = s.w.emit(f"vector.shuffle {zero}, {lanes} {picks} : {kind}, {kind}")
        lanes = combine(s, "add", dtype, lanes, shifted, width)
        step *= 2
    return lanes


# -- transposing ---------------------------------------------------------------------------------
def transpose_lanes(s: State, rows: list[str], element: str) -> list[str]:
    """Transposes n vectors of n lanes by swapping blocks of 1, 2, 4, ... lanes."""
    size, kind, step = len(rows), vector(len(rows), element), 1
    while step < size:
        low = [j if not j & step else size + j - step for j in range(size)]
        high = [j + step if not j & step else size + j for j in range(size)]
        for i in range(size):
            if i & step:
                continue
            a, b = rows[i], rows[i + step]
            rows[i] = s.w.emit(f"vector.shuffle {a}, {b} {low} : {kind}, {kind}")
            rows[i + step] = s.w.emit(f"vector.shuffle {a}, {b} {high} : {kind}, {kind}")
        step *= 2
    return rows


def transpose_block(s: State, shape: tuple[int, ...], dtype: str) -> int:
    """Rows and columns that :func:`transpose` moves at a time."""
    return min(*shape, (16 if s.has_avx512 else 8) if BYTES[dtype] == 4 else 1)


def transpose(
    s: State,
    pointer: str,
    stride: str,
    target: Slot,
    shape: tuple[int, int],
    *,
    columns: str | None = None,
) -> None:
    """A row-major ``shape`` at ``pointer`` into ``target`` (whose elements they are) as its transpose.

    ``columns`` (i64) bounds what is needed; up to a block more is read, within ``shape``.
    """
    m, n = shape
    size, element = BYTES[target.dtype], target.element
    block = transpose_block(s, shape, target.dtype)

    def build(names: list[str]) -> None:
        source, step, out, rows, last = names
        w, kind = s.w, vector(block, element)
        with (
            w.loop(w.i64(0), rows, w.i64(block)) as outer,
            w.loop(w.i64(0), last, w.i64(block)) as inner,
        ):
            lanes: list[str] = []
            for u in range(block):
                row = w.mul(w.add(outer.index, w.i64(u)), step)
                lanes.append(
                    w.load(w.address(source, w.add(row, inner.index), element), kind, size)
                )
            for u, line in enumerate(transpose_lanes(s, lanes, element)):
                column = w.mul(w.add(inner.index, w.i64(u)), rows)
                w.store(line, w.address(out, w.add(column, outer.index), element), kind, size)

    w = s.w
    ends = [(w.i64(m), "i64"), (columns or w.i64(n), "i64")]
    arguments = [(pointer, "!llvm.ptr"), (stride, "i64"), (target.pointer, "!llvm.ptr"), *ends]
    s.call(f"transpose_{element}_{block}", arguments, build)


def transpose_slot(s: State, source: Slot, target: Slot, shape: tuple[int, int]) -> None:
    """The transpose of a stored tile of ``shape``."""
    transpose(s, source.pointer, s.w.i64(shape[1]), target, shape)
