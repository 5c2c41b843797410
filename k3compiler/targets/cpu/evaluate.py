"""Evaluating lazy tiles inside a loop nest, a row of lanes at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from k3compiler.targets.cpu.arithmetic import compute, literal
from k3compiler.targets.cpu.formats import BYTES, Lanes, cast, kind_of
from k3compiler.targets.cpu.graph import Op, Value
from k3compiler.targets.cpu.memory import Region, Row, load_lanes, locate, open_row
from k3compiler.targets.cpu.plan import keeps_layout
from k3compiler.targets.cpu.state import Slot, State
from k3compiler.targets.cpu.text import Lines, vector

LANES = 16


@dataclass(frozen=True, slots=True)
class At:
    """A place in a tile: ``row`` (None in a run of elements), first ``column``, ``width`` (None: one element)."""

    row: str | None
    column: str
    width: int | None


class Nest:
    """One loop nest: rows outside, lanes inside. Values are emitted as far out as they can be.

    Three places: ``before`` the loops, at the head of a ``row``, and here.
    """

    def __init__(self, s: State) -> None:
        self.s, self.w = s, s.w
        self.zero = s.w.i64(0)
        self.before: Lines = s.w.place()
        self.row_index: str | None = None
        self.row_place: Lines = self.before
        self._memo: dict[tuple[Value, At], str] = {}
        self._regions: dict[Op, Region] = {}
        self._rows: dict[tuple[Op, str], Row] = {}
        self._offsets: dict[tuple[str, int], str] = {}

    # -- loops ---------------------------------------------------------------------------------
    @contextmanager
    def rows(self, low: str, high: str) -> Iterator[str]:
        """The row loop; yields the row (i64)."""
        with self.w.loop(low, high, self.w.i64(1)) as loop:
            self.row_index, self.row_place = loop.index, self.w.place()
            yield loop.index
            self.row_index, self.row_place = None, self.before

    # -- values --------------------------------------------------------------------------------
    def value(self, value: Value, at: At) -> str:
        """The lanes of ``value`` at a place of its domain (register type of its dtype)."""
        if value.shape == ():
            return self.s.scalar(value)
        key = (value, at)
        if key not in self._memo:
            with self.w.at(self._place(at)):
                self._memo[key] = self._compute(value, at)
        return self._memo[key]

    def _place(self, at: At) -> Lines:
        if at.width is None and at.row is None:
            if at.column == self.row_index:
                return self.row_place
            if at.column == self.zero:
                return self.before
        return self.w.lines

    def _compute(self, value: Value, at: At) -> str:
        slot = self.s.slot_of(value)
        if slot is not None:
            return self.load_slot(slot, self.offset(value, at), at.width)
        op = value.op
        assert op is not None, "a tile that no op makes"
        match op.name:
            case "arith.constant":
                return self.w.constant(
                    literal(op.attributes["value"], value.dtype), kind_of(value.dtype, at.width)
                )
            case "tile.splat":
                return self._splat(self.s.scalar(op.operands[0]), value.dtype, at.width)
            case "tile.iota":
                return self._iota(at)
            case "tile.expand_dims":
                return self.value(op.operands[0], at)
            case "tile.reshape":
                assert keeps_layout(value), "a reshape of something that has no buffer"
                return self.value(op.operands[0], at)
            case "tile.broadcast":
                return self._broadcast(value, op.operands[0], at)
            case "tile.load":
                return self._load(op, at)
            case _:
                return self._elementwise(op, value, at)

    def _elementwise(self, op: Op, value: Value, at: At) -> str:
        operands = [self.value(v, at) for v in op.operands]
        operands = [
            self._splat(x, v.dtype, at.width) if v.shape == () else x
            for x, v in zip(operands, op.operands, strict=True)
        ]
        return elementwise(self.s, op, operands, at.width)

    def _splat(self, scalar: str, dtype: str, width: int | None) -> str:
        if width is None:
            return scalar
        kind = kind_of(dtype, width)
        return self.w.emit(f"vector.broadcast {scalar} : {kind_of(dtype, None)} to {kind}")

    def _iota(self, at: At) -> str:
        first = self.w.narrow(at.column)
        if at.width is None:
            return first
        kind = vector(at.width, "i32")
        start = self.w.emit(f"vector.broadcast {first} : i32 to {kind}")
        return self.w.emit(f"arith.addi {start}, {self.w.lanes(at.width)} : {kind}")

    def _broadcast(self, value: Value, source: Value, at: At) -> str:
        if value.shape == source.shape:
            return self.value(source, at)
        if source.size == 1:
            inner = At(None, self.zero, None)
        elif value.matrix is None:
            return self.value(source, at)
        elif source.shape[0] == 1:
            return self.value(source, At(None, at.column, at.width))
        else:
            assert at.row is not None
            inner = At(None, at.row, None)
        return self._splat(self.value(source, inner), value.dtype, at.width)

    # -- memory --------------------------------------------------------------------------------
    def offset(self, value: Value, at: At) -> str:
        """The index of a place in a row-major buffer of ``value``."""
        if at.row is None:
            return at.column
        assert value.matrix is not None
        key = (at.row, value.matrix[1])
        if key not in self._offsets:
            with self.w.at(self.row_place):
                self._offsets[key] = self.w.mul(at.row, self.w.i64(value.matrix[1]))
        return self.w.add(self._offsets[key], at.column)

    def load_slot(self, slot: Slot, offset: str, width: int | None) -> str:
        return load_slot(self.s, slot, offset, width)

    def region(self, op: Op, shape: tuple[int, ...]) -> Region:
        """The place in memory of a load or store, computed before the loops."""
        assert op.access is not None
        if op not in self._regions:
            with self.w.at(self.before):
                self._regions[op] = locate(self.s, op.access, shape)
        return self._regions[op]

    def row(self, op: Op, shape: tuple[int, ...], at: At) -> Row:
        """The row of a load or store, computed at the head of the row loop."""
        region, index = self.region(op, shape), at.row or self.zero
        key = (op, index)
        if key not in self._rows:
            place = self.row_place if at.row is not None else self.before
            with self.w.at(place):
                self._rows[key] = open_row(
                    self.s, region, index, lambda rows: self.value(rows, At(None, index, None))
                )
        return self._rows[key]

    def _load(self, op: Op, at: At) -> str:
        shape = op.result.shape
        return load_lanes(
            self.s, self.region(op, shape), self.row(op, shape, at), at.column, at.width
        )


def load_slot(s: State, slot: Slot, offset: str, width: int | None) -> str:
    """Lanes of a stack buffer at an element offset."""
    pointer = s.w.address(slot.pointer, offset, slot.element)
    value = s.w.load(pointer, vector(width, slot.element), BYTES[slot.dtype])
    if slot.dtype != "i1":
        return value
    return s.w.emit(f"arith.trunci {value} : {vector(width, 'i8')} to {vector(width, 'i1')}")


def store_slot(s: State, slot: Slot, offset: str, width: int | None, value: str) -> None:
    """The mirror of :func:`load_slot`."""
    pointer = s.w.address(slot.pointer, offset, slot.element)
    if slot.dtype == "i1":
        value = s.w.emit(f"arith.extui {value} : {vector(width, 'i1')} to {vector(width, 'i8')}")
    s.w.store(value, pointer, vector(width, slot.element), BYTES[slot.dtype])


def elementwise(s: State, op: Op, operands: list[str], width: int | None) -> str:
    """One elementwise op on lanes or scalars.

    Raises:
        K3Error: K3-T020 for an op that the CPU target does not know.
    """
    dtypes = [v.dtype for v in op.operands]
    if op.name == "tile.cast":
        return cast(Lanes(s.w, width), operands[0], dtypes[0], op.result.dtype)
    if op.name == "tile.bitcast":
        source, target = kind_of(dtypes[0], width), kind_of(op.result.dtype, width)
        if source == target:
            return operands[0]
        return s.w.emit(f"arith.bitcast {operands[0]} : {source} to {target}")
    floats = [d for d in dtypes if d in ("bf16", "f16", "e4m3")]
    if floats and op.name not in ("arith.select",):
        raise s.refuse(op.name, "elementwise math in f32 (cast the operands)", floats[0])
    result = compute(s.w, op.name, operands, dtypes, op.attributes, width)
    if result is None:
        raise s.refuse("op", "an op of docs/tile.md", op.name)
    return result


def lanes_of(columns: int) -> int:
    """Lanes of the inner loop over a row of ``columns``."""
    return min(columns, LANES)
