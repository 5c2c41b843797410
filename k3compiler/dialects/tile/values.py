"""Tiles and scalars as Python values with operators, so that kernel bodies read like the equations."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import TYPE_CHECKING

from k3compiler.dialects.tile import ops
from k3compiler.ir.bindings import arith, ir, math

if TYPE_CHECKING:
    from k3compiler.dialects.tile.builder import Program

FLOATS = ("f32", "bf16", "f16", "e4m3")
Number = int | float
_KERNELS = "kernels"


def element_type(dtype: str) -> ir.Type:
    """The MLIR type of a dtype name of docs/tile.md."""
    table: dict[str, Callable[[], ir.Type]] = {
        "f32": ir.F32Type.get,
        "bf16": ir.BF16Type.get,
        "f16": ir.F16Type.get,
        "e4m3": ir.Float8E4M3FNType.get,
    }
    if dtype in table:
        return table[dtype]()
    return ir.IntegerType.get_signless({"i32": 32, "i8": 8, "i16": 16, "i1": 1}[dtype])


def dtype_name(kind: ir.Type) -> str:
    """The inverse of :func:`element_type`."""
    text = str(kind)
    return {"f8E4M3FN": "e4m3"}.get(text, text)


def here(program: Program) -> ir.Location:
    """Location of the kernel line being built: op and equation by name, file and line for debug info."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _KERNELS not in frame.f_code.co_filename.split("/"):
        frame = frame.f_back
    if frame is None:
        return ir.Location.name(program.label)
    name = "/".join(frame.f_code.co_filename.split("/")[-2:])
    line = ir.Location.file(f"k3compiler/{name}", frame.f_lineno, 1)
    return ir.Location.name(program.label, line)


class Tile:
    """A value of a tile program: a tile of rank 1 or 2, or a scalar (shape ``()``)."""

    __slots__ = ("dtype", "program", "shape", "value")

    def __init__(self, program: Program, value: ir.Value) -> None:
        self.program, self.value = program, value
        kind = value.type
        is_tile = isinstance(kind, ir.RankedTensorType)
        self.shape: tuple[int, ...] = tuple(kind.shape) if is_tile else ()
        self.dtype: str = dtype_name(kind.element_type if is_tile else kind)

    # -- construction ------------------------------------------------------------------------
    def _type(self, shape: Sequence[int], dtype: str) -> ir.Type:
        kind = element_type(dtype)
        return ir.RankedTensorType.get(list(shape), kind) if shape else kind

    def _emit(self, build: Callable[..., object], *args: object, **kwargs: object) -> Tile:
        with here(self.program):
            made = build(*args, **kwargs)
        return Tile(self.program, made if isinstance(made, ir.Value) else made.result)  # type: ignore[attr-defined]

    def lift(self, other: Tile | Number) -> Tile:
        """``other`` as a value of this one's dtype (numbers become constants)."""
        return other if isinstance(other, Tile) else self.program.constant(other, self.dtype)

    def to_shape(self, shape: Sequence[int]) -> Tile:
        """This value repeated to ``shape`` (scalars splat, extents of 1 broadcast)."""
        shape = tuple(shape)
        if self.shape == shape:
            return self
        kind = self._type(shape, self.dtype)
        if not self.shape:
            return self._emit(ops.Splat, kind, self.value)
        assert len(self.shape) == len(shape), (
            f"cannot broadcast {self.shape} to {shape}: expand first"
        )
        return self._emit(ops.Broadcast, kind, self.value)

    def _with(self, other: Tile | Number) -> tuple[Tile, Tile]:
        b = self.lift(other)
        assert self.dtype == b.dtype, f"dtypes differ: {self.dtype} and {b.dtype}; cast with .to()"
        shape = common_shape(self.shape, b.shape)
        return self.to_shape(shape), b.to_shape(shape)

    def _binary(self, other: Tile | Number, on_float: str, on_int: str) -> Tile:
        a, b = self._with(other)
        build = getattr(arith, on_float if self.dtype in FLOATS else on_int)
        return a._emit(build, a.value, b.value)

    # -- arithmetic --------------------------------------------------------------------------
    def __add__(self, other: Tile | Number) -> Tile:
        return self._binary(other, "AddFOp", "AddIOp")

    def __sub__(self, other: Tile | Number) -> Tile:
        return self._binary(other, "SubFOp", "SubIOp")

    def __mul__(self, other: Tile | Number) -> Tile:
        return self._binary(other, "MulFOp", "MulIOp")

    def __truediv__(self, other: Tile | Number) -> Tile:
        assert self.dtype in FLOATS, "integers divide with //"
        return self._binary(other, "DivFOp", "")

    def __floordiv__(self, other: Tile | int) -> Tile:
        return self._binary(other, "", "DivSIOp")

    def __mod__(self, other: Tile | int) -> Tile:
        return self._binary(other, "", "RemSIOp")

    def __radd__(self, other: Number) -> Tile:
        return self.lift(other) + self

    def __rsub__(self, other: Number) -> Tile:
        return self.lift(other) - self

    def __rmul__(self, other: Number) -> Tile:
        return self.lift(other) * self

    def __rtruediv__(self, other: Number) -> Tile:
        return self.lift(other) / self

    def __neg__(self) -> Tile:
        return self._emit(arith.NegFOp, self.value) if self.dtype in FLOATS else 0 - self

    def __and__(self, other: Tile | int) -> Tile:
        return self._binary(other, "", "AndIOp")

    def __or__(self, other: Tile | int) -> Tile:
        return self._binary(other, "", "OrIOp")

    def __xor__(self, other: Tile | int) -> Tile:
        return self._binary(other, "", "XOrIOp")

    def __lshift__(self, other: Tile | int) -> Tile:
        return self._binary(other, "", "ShLIOp")

    def __rshift__(self, other: Tile | int) -> Tile:
        return self._binary(other, "", "ShRUIOp")

    # -- comparison (i1) ---------------------------------------------------------------------
    def _compare(self, other: Tile | Number, on_float: int, on_int: int) -> Tile:
        a, b = self._with(other)
        if self.dtype in FLOATS:
            return a._emit(arith.CmpFOp, on_float, a.value, b.value)
        return a._emit(arith.CmpIOp, on_int, a.value, b.value)

    def __lt__(self, other: Tile | Number) -> Tile:
        return self._compare(other, 4, 2)

    def __le__(self, other: Tile | Number) -> Tile:
        return self._compare(other, 5, 3)

    def __gt__(self, other: Tile | Number) -> Tile:
        return self._compare(other, 2, 4)

    def __ge__(self, other: Tile | Number) -> Tile:
        return self._compare(other, 3, 5)

    def eq(self, other: Tile | Number) -> Tile:
        """Equal (``==`` stays Python's identity)."""
        return self._compare(other, 1, 0)

    def ne(self, other: Tile | Number) -> Tile:
        """Not equal; true where an operand is NaN."""
        return self._compare(other, 13, 1)

    # -- shape -------------------------------------------------------------------------------
    def expand(self, axis: int) -> Tile:
        """A 1-D tile as a column (axis 1: ``[N, 1]``) or a row (axis 0: ``[1, N]``)."""
        shape = list(self.shape)
        shape.insert(axis, 1)
        return self._emit(ops.ExpandDims, self._type(shape, self.dtype), self.value, _i32(axis))

    @property
    def T(self) -> Tile:
        """Transpose of a 2-D tile."""
        return self._emit(ops.Trans, self._type(self.shape[::-1], self.dtype), self.value)

    def reshape(self, *shape: int) -> Tile:
        """The same elements in row-major order as another shape."""
        return self._emit(ops.Reshape, self._type(shape, self.dtype), self.value)

    # -- along an axis -----------------------------------------------------------------------
    def _reduce(self, axis: int, kind: str) -> Tile:
        shape = self.shape[:axis] + self.shape[axis + 1 :]
        attrs = (_i32(axis), ir.StringAttr.get(kind))
        return self._emit(ops.Reduce, self._type(shape, self.dtype), self.value, *attrs)

    def sum(self, axis: int) -> Tile:
        return self._reduce(axis, "add")

    def max(self, axis: int) -> Tile:
        return self._reduce(axis, "max")

    def min(self, axis: int) -> Tile:
        return self._reduce(axis, "min")

    def cumsum(self, axis: int) -> Tile:
        """Inclusive cumulative sum."""
        return self._emit(
            ops.Scan, self.value.type, self.value, _i32(axis), ir.StringAttr.get("add")
        )

    # -- dtype -------------------------------------------------------------------------------
    def to(self, dtype: str) -> Tile:
        """Numeric conversion (rounding rules in docs/tile.md)."""
        if dtype == self.dtype:
            return self
        return self._emit(ops.Cast, self._type(self.shape, dtype), self.value)

    def bitcast(self, dtype: str) -> Tile:
        """The same bits as another dtype of the same width."""
        return self._emit(ops.Bitcast, self._type(self.shape, dtype), self.value)

    def unary(self, name: str) -> Tile:
        """``math.<name>`` elementwise."""
        return self._emit(getattr(math, name), self.value)


def common_shape(a: Sequence[int], b: Sequence[int]) -> tuple[int, ...]:
    """The shape two operands broadcast to."""
    if not a or not b:
        return tuple(a) or tuple(b)
    assert len(a) == len(b), f"ranks differ: {a} and {b}; expand first"
    assert all(x == y or 1 in (x, y) for x, y in zip(a, b, strict=True)), f"{a} against {b}"
    return tuple(max(x, y) for x, y in zip(a, b, strict=True))


def _i32(value: int) -> ir.IntegerAttr:
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(32), value)


# -- free functions ------------------------------------------------------------------------------
def exp(x: Tile) -> Tile:
    return x.unary("ExpOp")


def exp2(x: Tile) -> Tile:
    return x.unary("Exp2Op")


def log(x: Tile) -> Tile:
    return x.unary("LogOp")


def sqrt(x: Tile) -> Tile:
    return x.unary("SqrtOp")


def rsqrt(x: Tile) -> Tile:
    return x.unary("RsqrtOp")


def tanh(x: Tile) -> Tile:
    return x.unary("TanhOp")


def absolute(x: Tile) -> Tile:
    return x.unary("AbsFOp")


def floor(x: Tile) -> Tile:
    return x.unary("FloorOp")


def sigmoid(x: Tile) -> Tile:
    return 1.0 / (1.0 + exp(-x))


def silu(x: Tile) -> Tile:
    return x * sigmoid(x)


def softplus(x: Tile) -> Tile:
    """log(1 + e^x) without overflow: max(x, 0) + log(1 + e^-|x|)."""
    return maximum(x, 0.0) + log(1.0 + exp(-absolute(x)))


def minimum(a: Tile, b: Tile | Number) -> Tile:
    return a._binary(b, "MinNumFOp", "MinSIOp")


def maximum(a: Tile, b: Tile | Number) -> Tile:
    return a._binary(b, "MaxNumFOp", "MaxSIOp")


def where(condition: Tile, a: Tile | Number, b: Tile | Number) -> Tile:
    """Elementwise choice; at least one of ``a`` and ``b`` is a Tile."""
    assert condition.dtype == "i1", f"where: expected an i1 condition, found {condition.dtype}"
    base = a if isinstance(a, Tile) else b
    assert isinstance(base, Tile), "where needs a Tile on one side"
    x, y = base.lift(a), base.lift(b)
    assert x.dtype == y.dtype, f"where: dtypes differ: {x.dtype} and {y.dtype}"
    shape = common_shape(common_shape(x.shape, y.shape), condition.shape)
    chosen = [v.to_shape(shape).value for v in (condition, x, y)]
    return base._emit(arith.SelectOp, *chosen)


def dot(a: Tile, b: Tile, acc: Tile | None = None, *, precision: str | None = None) -> Tile:
    """``acc + a @ b`` accumulated in f32; a ``[M, K]``, b ``[K, N]``; ieee for f32 operands by default.

    An ``acc`` of ``[P M, N]`` keeps P sums apart, block p of its rows that of part p of K: chains that do not wait for
    each other, in a warp each where there are as many.
    """
    precision = precision or ("ieee" if a.dtype == "f32" else "bf16")
    acc = acc or a.program.zeros((a.shape[0], b.shape[1]))
    attr = ir.StringAttr.get(precision)
    return a._emit(ops.Dot, acc.value.type, a.value, b.value, acc.value, attr)


def mx4_plane(words: Tile, scale: Tile, plane: int) -> Tile:
    """bf16 of one e2m1 value a word (i16, package/shuffles.py), times 2^(byte ``plane`` of ``scale`` - 253)."""
    kind = words._type(words.shape, "bf16")
    scale = scale.to_shape(words.shape)
    return words._emit(ops.Mx4Plane, kind, words.value, scale.value, _i32(plane))


def dot_scaled(
    a: Tile,
    b: Tile,
    acc: Tile | None = None,
    *,
    a_format: str,
    b_format: str,
    a_scale: Tile | None = None,
    b_scale: Tile | None = None,
) -> Tile:
    """``acc + A @ B^T`` of MX operands; a ``[M, K]`` and b ``[N, K]``, packed along K where e2m1."""
    acc = acc or a.program.zeros((a.shape[0], b.shape[0]))
    scales = {
        name: scale.value
        for name, scale in (("a_scale", a_scale), ("b_scale", b_scale))
        if scale is not None
    }
    forms = (ir.StringAttr.get(a_format), ir.StringAttr.get(b_format))
    return a._emit(ops.DotScaled, acc.value.type, a.value, b.value, acc.value, *forms, **scales)
