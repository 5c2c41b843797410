"""A tile program as plain Python objects, read once from its module."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from k3compiler.errors import K3Error
from k3compiler.ir.bindings import ir

DTYPES = {"f8E4M3FN": "e4m3"}
KNOWN = ("f32", "bf16", "f16", "e4m3", "i32", "i16", "i8", "i1")


@dataclass(eq=False, slots=True)
class Value:
    """A tile (shape of rank 1 or 2) or a scalar (shape ``()``)."""

    shape: tuple[int, ...]
    dtype: str
    op: Op | None = None
    users: list[Op] = field(default_factory=list)

    @property
    def size(self) -> int:
        count = 1
        for extent in self.shape:
            count *= extent
        return count

    @property
    def matrix(self) -> tuple[int, int] | None:
        """Extents where neither is 1; None for what is one run of elements."""
        if len(self.shape) == 2 and 1 not in self.shape:
            return self.shape[0], self.shape[1]
        return None


@dataclass(eq=False, slots=True)
class Buffer:
    """A memref argument; extents are static or the scalar that holds them."""

    name: str
    dtype: str
    extents: tuple[int | Value, ...]
    position: int
    is_written: bool = False


@dataclass(eq=False, slots=True)
class Access:
    """What a load or store touches."""

    buffer: Buffer
    indices: list[Value]
    dims: list[int]
    limits: list[Value]
    rows: Value | None
    other: float


@dataclass(eq=False, slots=True)
class Op:
    """One operation; ``order`` counts through the program, ``end`` is the last order inside it."""

    name: str
    operands: list[Value]
    results: list[Value]
    attributes: dict[str, Any]
    order: int
    parent: Op | None
    access: Access | None = None
    body: list[Op] = field(default_factory=list)
    arguments: list[Value] = field(default_factory=list)
    end: int = 0

    @property
    def result(self) -> Value:
        return self.results[0]

    def ancestors(self) -> Iterator[Op]:
        op = self.parent
        while op is not None:
            yield op
            op = op.parent


@dataclass(eq=False, slots=True)
class Program:
    """One kernel: ``arguments`` in launch order (buffers, then scalars)."""

    symbol: str
    arguments: list[Buffer | Value]
    body: list[Op]
    grid: tuple[str, ...]

    def walk(self) -> Iterator[Op]:
        """Every op, parents before what they hold."""
        stack = list(reversed(self.body))
        while stack:
            op = stack.pop()
            yield op
            stack.extend(reversed(op.body))


def read_program(module: ir.Module) -> Program:
    """The single tile program of ``module``."""
    return _Reader(next(iter(module.body.operations))).program()


class _Reader:
    def __init__(self, function: Any) -> None:
        self.function = function
        self.symbol: str = function.attributes["sym_name"].value
        self.values: dict[Any, Value | Buffer] = {}
        self.order = 0

    def program(self) -> Program:
        block = self.function.regions[0].blocks[0]
        records = self.function.attributes["arg_attrs"]
        names = [record["tile.name"].value for record in records]
        scalars: dict[str, Value] = {}
        for name, argument in zip(names, block.arguments, strict=True):
            if not isinstance(argument.type, ir.MemRefType):
                scalars[name] = self._value(argument)
        for position, (name, argument) in enumerate(zip(names, block.arguments, strict=True)):
            if isinstance(argument.type, ir.MemRefType):
                extents = [e.value for e in records[position]["tile.shape"]]
                self.values[argument] = self._buffer(name, argument, extents, scalars, position)
        body = self._block(block, None)
        grid = tuple(e.value for e in self.function.attributes["tile.grid"])
        return Program(self.symbol, [self.values[a] for a in block.arguments], body, grid)

    def _buffer(
        self, name: str, argument: Any, extents: list[str], scalars: Mapping[str, Value], at: int
    ) -> Buffer:
        kind = argument.type
        if not kind.layout.__class__.__name__.startswith("AffineMap"):
            raise refuse(self.symbol, f"buffer {name}", "a row-major buffer", str(kind))
        sizes = tuple(int(e) if e.isdigit() else scalars[e] for e in extents)
        return Buffer(name, self._dtype(kind.element_type), sizes, at)

    def _dtype(self, kind: Any) -> str:
        name = DTYPES.get(str(kind), str(kind))
        if name not in KNOWN:
            raise refuse(self.symbol, "element type", f"one of {', '.join(KNOWN)}", name)
        return name

    def _value(self, value: Any, op: Op | None = None) -> Value:
        kind = value.type
        is_tile = isinstance(kind, ir.RankedTensorType)
        shape = tuple(kind.shape) if is_tile else ()
        made = Value(shape, self._dtype(kind.element_type if is_tile else kind), op)
        self.values[value] = made
        return made

    def _get(self, value: Any) -> Value:
        found = self.values[value]
        assert isinstance(found, Value)
        return found

    def _block(self, block: Any, parent: Op | None) -> list[Op]:
        ops: list[Op] = []
        for op in block.operations:
            name = op.operation.name
            if name == "func.return" or (name == "scf.yield" and not len(op.operation.operands)):
                continue
            ops.append(self._op(op, name, parent))
        return ops

    def _op(self, op: Any, name: str, parent: Op | None) -> Op:
        attributes = {key: op.attributes[key] for key in op.attributes}
        made = Op(name, [], [], attributes, self.order, parent)
        self.order += 1
        if name in ("tile.load", "tile.store"):
            made.access = self._access(op, name)
            if name == "tile.store":
                made.operands = [self._get(op.operation.operands[0])]
                made.access.buffer.is_written = True
            if made.access.rows is not None:
                made.operands.append(made.access.rows)
        else:
            made.operands = [self._get(v) for v in op.operation.operands]
        if name == "arith.constant":
            made.attributes["value"] = _constant(op.attributes["value"])
        if name == "tile.dot_scaled":
            made.attributes["scales"] = (op.a_scale is not None, op.b_scale is not None)
        for operand in made.operands:
            operand.users.append(made)
        made.results = [self._value(v, made) for v in op.operation.results]
        for region in op.operation.regions:
            for block in region.blocks:
                if made.body:
                    raise refuse(self.symbol, name, "scf.if without else", "an else branch")
                made.arguments = [self._value(a, made) for a in block.arguments]
                made.body = self._block(block, made)
        made.end = self.order - 1
        return made

    def _access(self, op: Any, name: str) -> Access:
        buffer = self.values[op.buffer]
        assert isinstance(buffer, Buffer)
        return Access(
            buffer,
            [self._get(v) for v in op.indices],
            list(op.dims),
            [self._get(v) for v in op.limits],
            None if op.rows is None else self._get(op.rows),
            op.other.value if name == "tile.load" else 0.0,
        )


def _constant(attribute: Any) -> int | float:
    if isinstance(attribute, ir.DenseElementsAttr):
        return attribute.get_splat_value().value
    return attribute.value


def refuse(symbol: str, where: str, expected: str, found: str, hint: str = "") -> K3Error:
    """A tile program that the CPU target cannot lower (K3-T020)."""
    return K3Error("K3-T020", where=f"{symbol}: {where}", expected=expected, found=found, hint=hint)
