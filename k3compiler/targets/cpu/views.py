"""Matrix operands as a pointer and a row stride: straight from the caller's memory where that is safe."""

from __future__ import annotations

from dataclasses import dataclass

from k3compiler.targets.cpu.formats import Lanes, cast, to_bf16, to_f32
from k3compiler.targets.cpu.graph import Op, Value
from k3compiler.targets.cpu.memory import Region, locate
from k3compiler.targets.cpu.nests import materialize
from k3compiler.targets.cpu.plan import is_lazy_op, is_strided
from k3compiler.targets.cpu.state import Slot, State, Valid


@dataclass(slots=True)
class View:
    """A row-major tile in memory (elements of ``dtype``), zero past ``valid``."""

    pointer: str
    stride: str
    dtype: str
    valid: Valid
    borrowed: Slot | None = None


def release(s: State, *views: View) -> None:
    """Gives back the buffers that views were materialised into."""
    for item in views:
        if item.borrowed is not None:
            s.release(item.borrowed)


def valid_of(s: State, value: Value) -> Valid:
    """Where a tile that is a load (and nothing but casts after it) ends; else the whole tile."""
    if value in s.valid:
        return s.valid[value]
    op = value.op
    while op is not None and op.name == "tile.cast" and value not in s.slots:
        value = op.operands[0]
        op = value.op
    if value in s.valid:
        return s.valid[value]
    if op is None or op.access is None or len(value.shape) != 2 or op.access.other != 0:
        return Valid()
    if is_strided(op.access, value.shape) or value.shape[1] == 1:
        return Valid()
    return _valid(s, locate(s, op.access, value.shape))


def _valid(s: State, region: Region) -> Valid:
    ends: list[str | None] = []
    for axis in (region.row, region.column):
        is_checked = axis.high is not None and axis.low is None
        is_row_of_gather = axis is region.row and region.is_gather
        if is_checked and not is_row_of_gather:
            assert axis.high is not None
            ends.append(s.w.clamp(axis.high, 0, s.w.i64(axis.extent)))
        else:
            ends.append(None)
    return Valid(ends[0], ends[1])


def view(
    s: State,
    value: Value,
    dtypes: tuple[str, ...],
    *,
    trims_rows: bool,
    column_step: int | None = None,
    rounds: bool = False,
) -> View:
    """``value`` as rows in memory, of one of ``dtypes`` (the first is what others are converted to).

    ``trims_rows`` promises that no row past ``valid.rows`` is read, ``column_step`` that columns are read in such
    steps only as long as they start before ``valid.columns``. ``rounds`` rounds f32 to bf16 first.
    """
    rounds = rounds and value.dtype == "f32"
    valid = valid_of(s, value)
    columns = s.w.i64(value.shape[1])
    slot = s.slot_of(value)
    if slot is not None and slot.dtype in dtypes and not rounds:
        return View(slot.pointer, columns, slot.dtype, valid)
    op = _direct_load(s, value, dtypes)
    if op is not None and not rounds:
        return _direct(s, op, value, valid, trims_rows, column_step)
    slot = s.allocate(value.size, dtypes[0])
    _fill(s, value, slot, dtypes[0], valid.rows if trims_rows else None, rounds)
    return View(slot.pointer, columns, dtypes[0], valid, slot)


def _fill(s: State, value: Value, slot: Slot, dtype: str, rows: str | None, rounds: bool) -> None:
    def convert(lanes: str, width: int | None) -> str:
        n = Lanes(s.w, width)
        if rounds:
            return to_f32(n, to_bf16(n, lanes), "bf16")
        return cast(n, lanes, value.dtype, dtype)

    materialize(s, value, slot, convert=convert, rows=rows)


def _direct_load(s: State, value: Value, dtypes: tuple[str, ...]) -> Op | None:
    """The load that a lazy value is (through exact casts), if its memory can be read in place."""
    op = value.op
    while op is not None and op.name == "tile.cast" and s.slot_of(op.result) is None:
        if op.operands[0].dtype != "bf16" or op.result.dtype != "f32":
            return None
        op = op.operands[0].op
    if op is None or op.access is None or not is_lazy_op(op) or s.slot_of(op.result) is not None:
        return None
    is_column = op.result.shape[1] == 1
    if op.access.rows is not None or op.access.buffer.dtype not in dtypes or is_column:
        return None
    return None if is_strided(op.access, op.result.shape) else op


def _direct(
    s: State, op: Op, value: Value, valid: Valid, trims_rows: bool, column_step: int | None
) -> View:
    assert op.access is not None
    w, dtype = s.w, op.result.dtype
    region = locate(s, op.access, value.shape)
    stride, columns = region.row.stride, w.i64(value.shape[1])
    conditions: list[str] = []
    is_stepped = column_step is not None and region.column.divisor % column_step == 0
    for axis, is_exact in ((region.row, trims_rows), (region.column, is_stepped)):
        if axis.low is not None:
            conditions.append(w.emit(f"arith.cmpi sle, {axis.low}, {w.i64(0)} : i64"))
        if axis.high is not None and not (is_exact and op.access.other == 0 and axis.low is None):
            conditions.append(w.emit(f"arith.cmpi sge, {axis.high}, {w.i64(axis.extent)} : i64"))
    if not conditions:
        return View(region.pointer, stride, dtype, valid)
    inside = conditions[0]
    for condition in conditions[1:]:
        inside = w.emit(f"arith.andi {inside}, {condition} : i1")
    slot = s.allocate(value.size, dtype)

    def copied() -> list[str]:
        materialize(s, op.result, slot, rows=valid.rows if trims_rows else None)
        return [slot.pointer, columns]

    pointer, stride = w.choose(
        inside, ["!llvm.ptr", "i64"], lambda: [region.pointer, stride], copied
    )
    return View(pointer, stride, dtype, valid, slot)
