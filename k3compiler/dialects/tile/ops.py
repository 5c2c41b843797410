"""Ops of the tile dialect. The contract of each is in docs/tile.md."""

from collections.abc import Sequence
from typing import Any

from k3compiler.config import MX_GROUP
from k3compiler.ir.bindings import ext, ir

DOT_PRECISIONS = ("ieee", "tf32", "bf16")
SCALED_FORMATS = ("f32", "bf16", "e4m3", "e2m1")


class Tile(ext.Dialect, name="tile"):
    """Programs over tiles of static power-of-two shape."""


def _shape(value: ir.Value) -> list[int]:
    kind = value.type
    return list(kind.shape) if isinstance(kind, ir.RankedTensorType) else []


def _element(value: ir.Value) -> ir.Type:
    kind = value.type
    return kind.element_type if isinstance(kind, (ir.RankedTensorType, ir.MemRefType)) else kind


def _check(op: ir.OpView, faults: Sequence[str | None]) -> bool:
    """Reports every fault of ``op`` through its location; True when there is none."""
    found = [fault for fault in faults if fault]
    if found:
        op.operation.location.emit_error(f"{op.operation.name}: " + "; ".join(found))
    return not found


def _want(what: str, expected: object, found: object) -> str | None:
    return None if expected == found else f"{what}: expected {expected}, found {found}"


def _power_of_two(value: ir.Value) -> str | None:
    bad = [n for n in _shape(value) if n < 1 or n & (n - 1)]
    return f"tile extents: expected powers of two, found {_shape(value)}" if bad else None


class ProgramId(Tile.Operation, name="program_id"):
    """The coordinate of this program in the grid along ``axis``."""

    result: ext.Result[ir.IntegerType[32]]
    axis: ir.IntegerAttr

    def verify_invariants(self) -> bool:
        axis = self.axis.value
        return _check(
            self, [None if axis in (0, 1, 2) else f"axis: expected 0, 1 or 2, found {axis}"]
        )


def _access_faults(op: Any, tile: ir.Value) -> list[str | None]:
    buffer, dims = op.buffer.type, list(op.dims)
    if not isinstance(buffer, ir.MemRefType):
        return [f"buffer: expected a memref, found {buffer}"]
    shape, limits, rows = _shape(tile), list(op.limits), op.rows
    return [
        _want("indices", buffer.rank, len(list(op.indices))),
        _want("dims", len(shape), len(dims)),
        None
        if sorted(set(dims)) == dims and all(0 <= d < buffer.rank for d in dims)
        else f"dims: expected ascending buffer dims below {buffer.rank}, found {dims}",
        None
        if len(limits) in (0, len(dims))
        else f"limits: expected 0 or {len(dims)}, found {len(limits)}",
        None if rows is None else _want("rows", shape[:1], _shape(rows)),
        _want("element type", str(buffer.element_type), str(_element(tile))),
        _power_of_two(tile),
    ]


def _no_dims() -> ir.Attribute:
    """The dims of a scalar access; the bindings take an empty array for a missing attribute."""
    return ir.DenseI64ArrayAttr.get([])


class Load(Tile.Operation, name="load"):
    """A tile of a buffer; what lies outside the buffer or past a limit reads as ``other``."""

    result: ext.Result[Any]
    buffer: ext.Operand[Any]
    indices: Sequence[ext.Operand[ir.IntegerType[32]]]
    limits: Sequence[ext.Operand[ir.IntegerType[32]]]
    other: ir.FloatAttr
    dims: Any = ext.attribute(default_factory=_no_dims)
    rows: ext.Operand[Any] | None = None

    def verify_invariants(self) -> bool:
        return _check(self, _access_faults(self, self.operation.results[0]))


class Store(Tile.Operation, name="store"):
    """Writes a tile; what lies outside the buffer or past a limit is dropped."""

    value: ext.Operand[Any]
    buffer: ext.Operand[Any]
    indices: Sequence[ext.Operand[ir.IntegerType[32]]]
    limits: Sequence[ext.Operand[ir.IntegerType[32]]]
    dims: Any = ext.attribute(default_factory=_no_dims)
    rows: ext.Operand[Any] | None = None

    def verify_invariants(self) -> bool:
        return _check(self, _access_faults(self, self.operation.operands[0]))


class Iota(Tile.Operation, name="iota", traits=[ext.Pure]):
    """0, 1, ..., N-1."""

    result: ext.Result[Any]

    def verify_invariants(self) -> bool:
        out = self.operation.results[0]
        return _check(self, [_want("rank", 1, len(_shape(out))), _power_of_two(out)])


class Splat(Tile.Operation, name="splat", traits=[ext.Pure]):
    """A tile of one scalar."""

    result: ext.Result[Any]
    value: ext.Operand[Any]

    def verify_invariants(self) -> bool:
        out, value = self.operation.results[0], self.operation.operands[0]
        return _check(self, [_want("element type", str(value.type), str(_element(out)))])


class ExpandDims(Tile.Operation, name="expand_dims", traits=[ext.Pure]):
    """A 1-D tile as a column (axis 1) or a row (axis 0)."""

    result: ext.Result[Any]
    value: ext.Operand[Any]
    axis: ir.IntegerAttr

    def verify_invariants(self) -> bool:
        shape = _shape(self.operation.operands[0])
        shape.insert(self.axis.value, 1)
        return _check(self, [_want("result shape", shape, _shape(self.operation.results[0]))])


class Broadcast(Tile.Operation, name="broadcast", traits=[ext.Pure]):
    """Repeats extents of 1."""

    result: ext.Result[Any]
    value: ext.Operand[Any]

    def verify_invariants(self) -> bool:
        source, out = _shape(self.operation.operands[0]), _shape(self.operation.results[0])
        fits = len(source) == len(out) and all(
            a in (1, b) for a, b in zip(source, out, strict=True)
        )
        return _check(
            self, [None if fits else f"shapes: expected 1s or equal, found {source} -> {out}"]
        )


class Trans(Tile.Operation, name="trans", traits=[ext.Pure]):
    """The transpose of a 2-D tile."""

    result: ext.Result[Any]
    value: ext.Operand[Any]

    def verify_invariants(self) -> bool:
        source = _shape(self.operation.operands[0])
        return _check(
            self, [_want("result shape", source[::-1], _shape(self.operation.results[0]))]
        )


class Reshape(Tile.Operation, name="reshape", traits=[ext.Pure]):
    """The same elements in row-major order, another shape."""

    result: ext.Result[Any]
    value: ext.Operand[Any]

    def verify_invariants(self) -> bool:
        sizes = []
        for value in (self.operation.operands[0], self.operation.results[0]):
            size = 1
            for extent in _shape(value):
                size *= extent
            sizes.append(size)
        return _check(self, [_want("element count", sizes[0], sizes[1])])


class Dot(Tile.Operation, name="dot", traits=[ext.Pure]):
    """``acc + a @ b`` in f32; where acc has P times the rows of a, block p of it sums part p of K."""

    result: ext.Result[Any]
    a: ext.Operand[Any]
    b: ext.Operand[Any]
    acc: ext.Operand[Any]
    precision: ir.StringAttr

    def verify_invariants(self) -> bool:
        a, b, acc = (self.operation.operands[i] for i in range(3))
        (m, k), (k2, n) = _shape(a), _shape(b)
        rows, columns = _shape(acc)
        precision = self.precision.value
        return _check(
            self,
            [
                _want("inner extent", k, k2),
                _want("acc columns", n, columns),
                None
                if rows in range(m, m * k + 1, m)
                else f"acc rows: expected {m} for each of up to {k} parts, found {rows}",
                _want("result type", str(acc.type), str(self.operation.results[0].type)),
                _want("operand types", str(_element(a)), str(_element(b))),
                None
                if precision in DOT_PRECISIONS
                else f"precision: expected one of {DOT_PRECISIONS}, found {precision}",
            ],
        )


class DotScaled(Tile.Operation, name="dot_scaled", traits=[ext.Pure]):
    """``acc + A @ B^T`` of MX operands: a ``[M, K]``, b ``[N, K]``, both packed along K where e2m1."""

    result: ext.Result[Any]
    a: ext.Operand[Any]
    b: ext.Operand[Any]
    acc: ext.Operand[Any]
    a_format: ir.StringAttr
    b_format: ir.StringAttr
    a_scale: ext.Operand[Any] | None = None
    b_scale: ext.Operand[Any] | None = None

    def verify_invariants(self) -> bool:
        sides = (
            ("a", self.a, self.a_format.value, self.a_scale),
            ("b", self.b, self.b_format.value, self.b_scale),
        )
        faults: list[str | None] = []
        inner: list[int] = []
        for name, value, form, scale in sides:
            rows, columns = _shape(value)
            k = columns * 2 if form == "e2m1" else columns
            inner.append(k)
            if form not in SCALED_FORMATS:
                faults.append(f"{name}_format: expected one of {SCALED_FORMATS}, found {form}")
            if (scale is not None) != (form in ("e2m1", "e4m3")):
                faults.append(
                    f"{name}_scale: expected with e2m1 and e4m3 only, found format {form}"
                )
            elif scale is not None:
                faults.append(_want(f"{name}_scale shape", [rows, k // MX_GROUP], _shape(scale)))
        faults.append(_want("inner extent", inner[0], inner[1]))
        out = [_shape(self.a)[0], _shape(self.b)[0]]
        faults.append(_want("result shape", out, _shape(self.operation.results[0])))
        return _check(self, faults)


def _reduced(value: ir.Value, axis: int) -> list[int]:
    shape = _shape(value)
    return shape[:axis] + shape[axis + 1 :]


class Mx4Plane(Tile.Operation, name="mx4_plane", traits=[ext.Pure]):
    """One of the four e2m1 values of every word, times 2^(byte ``plane`` of ``scale`` - 253), as bf16 (NVIDIA only)."""

    result: ext.Result[Any]
    words: ext.Operand[Any]
    scale: ext.Operand[Any]
    plane: ir.IntegerAttr

    def verify_invariants(self) -> bool:
        plane, shape = self.plane.value, _shape(self.words)
        faults = [
            _want("scale shape", shape, _shape(self.scale)),
            _want("result shape", shape, _shape(self.operation.results[0])),
            _want("word bits", 16, _element(self.words).width),
            None if plane in range(4) else f"plane: expected 0 to 3, found {plane}",
        ]
        return _check(self, faults)


class Reduce(Tile.Operation, name="reduce", traits=[ext.Pure]):
    """Sum, maximum or minimum along one axis."""

    result: ext.Result[Any]
    value: ext.Operand[Any]
    axis: ir.IntegerAttr
    kind: ir.StringAttr

    def verify_invariants(self) -> bool:
        kind, value = self.kind.value, self.operation.operands[0]
        return _check(
            self,
            [
                None
                if kind in ("add", "max", "min")
                else f"kind: expected add, max or min, found {kind}",
                _want(
                    "result shape",
                    _reduced(value, self.axis.value),
                    _shape(self.operation.results[0]),
                ),
            ],
        )


class Scan(Tile.Operation, name="scan", traits=[ext.Pure]):
    """Inclusive cumulative sum along one axis."""

    result: ext.Result[Any]
    value: ext.Operand[Any]
    axis: ir.IntegerAttr
    kind: ir.StringAttr

    def verify_invariants(self) -> bool:
        return _check(
            self,
            [
                _want("kind", "add", self.kind.value),
                _want("result type", str(self.value.type), str(self.operation.results[0].type)),
            ],
        )


class Cast(Tile.Operation, name="cast", traits=[ext.Pure]):
    """Numeric conversion of a tile or scalar (rounding rules in docs/tile.md)."""

    result: ext.Result[Any]
    value: ext.Operand[Any]

    def verify_invariants(self) -> bool:
        return _check(self, [_want("shape", _shape(self.value), _shape(self.operation.results[0]))])


class Bitcast(Tile.Operation, name="bitcast", traits=[ext.Pure]):
    """The same bits as another type of the same width."""

    result: ext.Result[Any]
    value: ext.Operand[Any]

    def verify_invariants(self) -> bool:
        out = self.operation.results[0]
        widths = [_element(v).width for v in (self.value, out)]
        return _check(
            self,
            [
                _want("shape", _shape(self.value), _shape(out)),
                _want("bit width", widths[0], widths[1]),
            ],
        )
