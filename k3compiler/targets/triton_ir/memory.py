"""tile.load and tile.store as pointer arithmetic and masks.

The address is a scalar pointer in 64 bits (every index times its stride) plus tile offsets, which are 32 bits wide
where they provably fit; gathered rows and symbolic strides take 64. A mask is left out where facts prove it true.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isfinite
from typing import TYPE_CHECKING, Any

from k3compiler.ir.bindings import ir
from k3compiler.targets.triton_ir.facts import Affine
from k3compiler.targets.triton_ir.text import tensor

if TYPE_CHECKING:
    from k3compiler.targets.triton_ir.emitter import Emitter

INT32_SPAN = 2**31
WIDTH_BYTES = {"f32": 4, "i32": 4, "bf16": 2, "f16": 2, "i16": 2, "i8": 1, "f8E4M3FN": 1}


@dataclass(frozen=True, slots=True)
class BufferView:
    """A buffer argument: its pointer's name, element type text and extents (a symbol is its argument)."""

    pointer: str
    element: str
    extents: tuple[Any, ...]

    def stride(self, dim: int) -> tuple[int, list[Any]]:
        """Elements between neighbours along ``dim``: a number times symbols."""
        number, symbols = 1, []
        for extent in self.extents[dim + 1 :]:
            if isinstance(extent, int):
                number *= extent
            else:
                symbols.append(extent)
        return number, symbols


@dataclass(frozen=True, slots=True)
class _Access:
    """One load or store: which buffer, where, and the shape of its tile."""

    view: BufferView
    indices: list[Any]
    limits: list[Any]
    dims: list[int]
    rows: Any | None
    shape: list[int]


def emit_load(e: Emitter, op: Any) -> str:
    """Emits a tile.load; returns the loaded value's name."""
    out = op.operation.results[0].type
    access = _access(e, op, out)
    base, kind = _base(e, access), f"!tt.ptr<{access.view.element}>"
    if not access.shape:
        return e.text.op(f"tt.load {base} : {kind}")
    pointers = _pointers(e, access, base)
    mask = _mask(e, access)
    kind = tensor(access.shape, kind)
    if mask is None:
        return e.text.op(f"tt.load {pointers} : {kind}")
    other = e.text.constant(_other(op, out), str(out))
    return e.text.op(f"tt.load {pointers}, {mask}, {other} : {kind}")


def emit_store(e: Emitter, op: Any) -> None:
    """Emits a tile.store."""
    value = op.operation.operands[0]
    access = _access(e, op, value.type)
    base, kind = _base(e, access), f"!tt.ptr<{access.view.element}>"
    if not access.shape:
        e.text.line(f"tt.store {base}, {e.name(value)} : {kind}")
        return
    pointers = _pointers(e, access, base)
    mask = _mask(e, access)
    masked = "" if mask is None else f", {mask}"
    e.text.line(f"tt.store {pointers}, {e.name(value)}{masked} : {tensor(access.shape, kind)}")


def _access(e: Emitter, op: Any, tile: Any) -> _Access:
    shape = list(tile.shape) if isinstance(tile, ir.RankedTensorType) else []
    return _Access(
        e.buffers[op.buffer], list(op.indices), list(op.limits), list(op.dims), op.rows, shape
    )


_INFINITE = {  # MLIR spells them by their bits
    ("f32", inf): "0x7F800000",
    ("f32", -inf): "0xFF800000",
    ("bf16", inf): "0x7F80",
    ("bf16", -inf): "0xFF80",
}


def _other(op: Any, out: Any) -> str:
    value = op.other.value
    if isinstance(out.element_type, ir.IntegerType):
        return repr(int(value))
    return f"{value:e}" if isfinite(value) else _INFINITE[str(out.element_type), value]


# -- addresses -----------------------------------------------------------------------------------
def _base(e: Emitter, access: _Access) -> str:
    """The pointer to the tile's first element (with rows: to row 0), in 64 bits."""
    offset: str | None = None
    for dim, index in enumerate(access.indices):
        form = e.facts.form(index)
        if not form.terms and form.constant == 0:
            continue
        wide = e.text.op(f"arith.extsi {e.name(index)} : i32 to i64")
        step = _times(e, wide, access.view.stride(dim))
        offset = step if offset is None else e.text.op(f"arith.addi {offset}, {step} : i64")
    if offset is None:
        return access.view.pointer
    kind = f"!tt.ptr<{access.view.element}>"
    return e.text.op(f"tt.addptr {access.view.pointer}, {offset} : {kind}, i64")


def _times(e: Emitter, wide: str, stride: tuple[int, list[Any]]) -> str:
    """An i64 scalar times a stride."""
    number, symbols = stride
    if number != 1:
        factor = e.text.constant(str(number), "i64")
        wide = e.text.op(f"arith.muli {wide}, {factor} : i64")
    for symbol in symbols:
        factor = e.text.op(f"arith.extsi {e.name(symbol)} : i32 to i64")
        wide = e.text.op(f"arith.muli {wide}, {factor} : i64")
    return wide


def _pointers(e: Emitter, access: _Access, base: str) -> str:
    shape, kind = access.shape, f"!tt.ptr<{access.view.element}>"
    pointers = e.text.op(f"tt.splat {base} : {kind} -> {tensor(shape, kind)}")
    wide = not _fits_32_bits(access)
    element = "i64" if wide else "i32"
    offset: str | None = None
    for axis in range(len(shape)):
        step = _axis_offset(e, access, axis, element)
        if step is None:
            continue
        step = _along(e, step, axis, shape, element)
        total = tensor(shape, element)
        offset = step if offset is None else e.text.op(f"arith.addi {offset}, {step} : {total}")
    if offset is None:
        return pointers
    return e.text.op(
        f"tt.addptr {pointers}, {offset} : {tensor(shape, kind)}, {tensor(shape, element)}"
    )


def _fits_32_bits(access: _Access) -> bool:
    if access.rows is not None:
        return False
    span = 0
    for axis, extent in enumerate(access.shape):
        number, symbols = access.view.stride(access.dims[axis])
        if symbols and extent > 1:
            return False
        span += (extent - 1) * number
    return span * WIDTH_BYTES[access.view.element] < INT32_SPAN


def _axis_offset(e: Emitter, access: _Access, axis: int, element: str) -> str | None:
    """Offsets along one axis as a vector of ``element``; None where they are all 0."""
    extent = access.shape[axis]
    rows = access.rows if axis == 0 else None
    if extent == 1 and rows is None:
        return None
    steps = e.name(rows) if rows is not None else e.iota(extent)
    vector = tensor([extent], element)
    if element == "i64":
        steps = e.text.op(f"arith.extsi {steps} : {tensor([extent], 'i32')} to {vector}")
    number, symbols = access.view.stride(access.dims[axis])
    if number != 1:
        factor = e.text.constant(str(number), vector)
        steps = e.text.op(f"arith.muli {steps}, {factor} : {vector}")
    for symbol in symbols:
        scalar = e.text.op(f"arith.extsi {e.name(symbol)} : i32 to i64")
        factor = e.text.op(f"tt.splat {scalar} : i64 -> {vector}")
        steps = e.text.op(f"arith.muli {steps}, {factor} : {vector}")
    return steps


def _along(e: Emitter, vector: str, axis: int, shape: Sequence[int], element: str) -> str:
    """A vector along ``axis`` repeated to ``shape``."""
    if len(shape) == 1:
        return vector
    extent = shape[axis]
    column = [extent, 1] if axis == 0 else [1, extent]
    source = tensor([extent], element)
    made = e.text.op(
        f"tt.expand_dims {vector} {{axis = {1 - axis} : i32}} : {source} -> {tensor(column, element)}"
    )
    if list(shape) == column:
        return made
    return e.text.op(f"tt.broadcast {made} : {tensor(column, element)} -> {tensor(shape, element)}")


# -- masks ---------------------------------------------------------------------------------------
def _mask(e: Emitter, access: _Access) -> str | None:
    mask: str | None = None
    kind = tensor(access.shape, "i1")
    for axis in range(len(access.shape)):
        for condition in _conditions(e, access, axis):
            mask = (
                condition if mask is None else e.text.op(f"arith.andi {mask}, {condition} : {kind}")
            )
    return mask


def _conditions(e: Emitter, access: _Access, axis: int) -> list[str]:
    """What must hold along one axis, each repeated to the tile's shape; empty where proven."""
    dim = access.dims[axis]
    index, extent = access.indices[dim], access.shape[axis]
    rows = access.rows if axis == 0 else None
    start = e.facts.form(index)
    ends = [access.view.extents[dim], *([access.limits[axis]] if access.limits else [])]
    if rows is None:
        last = start.plus(Affine(extent))
        ends = [end for end in ends if not e.facts.at_most(last, _form(e, end))]
    from_zero = rows is None and e.facts.never_negative(start)
    if not ends and from_zero:
        return []
    position, kind = _position(e, access, axis)
    tests = [] if from_zero else [("sge", e.text.i32(0))]
    if ends:
        tests.append(("slt", _least(e, _tightest(e, ends))))
    return [_compare(e, access, axis, position, kind, test) for test in tests]


def _least(e: Emitter, ends: list[Any]) -> str:
    """The smallest of the ends, as a scalar's name."""
    names = [e.text.i32(end) if isinstance(end, int) else e.name(end) for end in ends]
    least = names[0]
    for name in names[1:]:
        least = e.text.op(f"arith.minsi {least}, {name} : i32")
    return least


def _form(e: Emitter, end: Any) -> Affine:
    return Affine(end) if isinstance(end, int) else e.facts.form(end)


def _tightest(e: Emitter, ends: list[Any]) -> list[Any]:
    """Ends that no other one implies (of equals the first)."""
    forms = [_form(e, end) for end in ends]

    def implied(i: int) -> bool:
        return any(
            e.facts.at_most(forms[j], forms[i])
            and (j < i or not e.facts.at_most(forms[i], forms[j]))
            for j in range(len(ends))
            if j != i
        )

    return [end for i, end in enumerate(ends) if not implied(i)]


def _position(e: Emitter, access: _Access, axis: int) -> tuple[str, str]:
    """Coordinates along an axis: a scalar where the extent is 1, else a vector."""
    index, extent = access.indices[access.dims[axis]], access.shape[axis]
    rows = access.rows if axis == 0 else None
    if extent == 1 and rows is None:
        return e.name(index), "i32"
    kind = tensor([extent], "i32")
    steps = e.name(rows) if rows is not None else e.iota(extent)
    form = e.facts.form(index)
    if not form.terms and form.constant == 0:
        return steps, kind
    start = e.text.op(f"tt.splat {e.name(index)} : i32 -> {kind}")
    return e.text.op(f"arith.addi {start}, {steps} : {kind}"), kind


def _compare(
    e: Emitter, access: _Access, axis: int, position: str, kind: str, test: tuple[str, str]
) -> str:
    predicate, bound = test
    if kind == "i32":
        truth = e.text.op(f"arith.cmpi {predicate}, {position}, {bound} : i32")
        return e.text.op(f"tt.splat {truth} : i1 -> {tensor(access.shape, 'i1')}")
    bound = e.text.op(f"tt.splat {bound} : i32 -> {kind}")
    truth = e.text.op(f"arith.cmpi {predicate}, {position}, {bound} : {kind}")
    return _along(e, truth, axis, access.shape, "i1")
