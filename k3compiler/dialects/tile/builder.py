"""The builder of tile programs: buffers, scalars, loops, and the finished module."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from k3compiler.dialects.tile import ops
from k3compiler.dialects.tile.values import (
    Number,
    Tile,
    element_type,
    here,
)
from k3compiler.ir.bindings import arith, func, ir, scf

Index = Tile | int
Access = Literal["r", "w", "rw"]


@dataclass(frozen=True, slots=True)
class Argument:
    """One kernel argument; ``shape`` is None for a scalar, else ints and symbol names.

    ``is_weight``: a parameter of the model, which no kernel writes. ``is_settled``: that, or what only launches before
    the former one write, so that a program may read it while that still runs.
    """

    name: str
    dtype: str
    shape: tuple[int | str, ...] | None
    access: Access = "r"
    is_weight: bool = False
    is_settled: bool = False


class Buffer:
    """A kernel argument in memory: row-major, extents static or a symbol."""

    def __init__(self, program: Program, spec: Argument, value: ir.Value) -> None:
        self.program, self.spec, self.value = program, spec, value
        self.dtype = spec.dtype
        assert spec.shape is not None
        self.rank = len(spec.shape)

    def load(
        self,
        index: Sequence[Index],
        shape: Sequence[int] = (),
        *,
        dims: Sequence[int] | None = None,
        rows: Tile | None = None,
        limits: Sequence[Index] = (),
        other: float = 0.0,
    ) -> Tile:
        """A tile of ``shape`` at ``index`` (one entry a buffer dim).

        ``dims`` are the buffer dims that the tile spans (default: the last ones); ``rows`` gathers along
        ``dims[0]``; ``limits`` end each tile dim early; what lies outside reads as ``other``.
        """
        kind = element_type(self.dtype)
        result = ir.RankedTensorType.get(list(shape), kind) if shape else kind
        access = self._access(index, shape, dims, rows, limits)
        f64 = ir.FloatAttr.get(ir.F64Type.get(), float(other))
        with here(self.program):
            made = ops.Load(result, *access[:3], f64, **access[3])
        return Tile(self.program, made.result)

    def store(
        self,
        index: Sequence[Index],
        value: Tile,
        *,
        dims: Sequence[int] | None = None,
        rows: Tile | None = None,
        limits: Sequence[Index] = (),
    ) -> None:
        """Writes a tile; the mirror of :meth:`load` (``rows`` scatters)."""
        assert self.spec.access != "r", f"buffer {self.spec.name} is declared read-only"
        assert value.dtype == self.dtype, f"{self.spec.name} holds {self.dtype}, not {value.dtype}"
        access = self._access(index, value.shape, dims, rows, limits)
        with here(self.program):
            ops.Store(value.value, *access[:3], **access[3])

    def _access(
        self,
        index: Sequence[Index],
        shape: Sequence[int],
        dims: Sequence[int] | None,
        rows: Tile | None,
        limits: Sequence[Index],
    ) -> tuple[ir.Value, list[ir.Value], list[ir.Value], dict[str, ir.Value | ir.Attribute]]:
        p = self.program
        assert len(index) == self.rank, (
            f"{self.spec.name}: {self.rank} indices wanted, got {len(index)}"
        )
        spans = list(dims) if dims is not None else list(range(self.rank - len(shape), self.rank))
        indices = [p.scalar_value(i).value for i in index]
        ends = [p.scalar_value(i).value for i in limits]
        named: dict[str, ir.Value | ir.Attribute] = {"dims": ir.DenseI64ArrayAttr.get(spans)}
        if rows is not None:
            named["rows"] = rows.value
        return self.value, indices, ends, named


@dataclass
class _Loop:
    op: scf.ForOp
    results: list[Tile] = field(default_factory=list)


class Program:
    """One tile program under construction.

    Buffers are declared first, then symbols and scalars; both become kernel arguments in that order.
    ``label`` names the source op (and equation) in every location.
    """

    def __init__(self, name: str, label: str) -> None:
        self.name, self.label = name, label
        self.arguments: list[Argument] = []
        self.grid_rule: tuple[str, str, str] | None = None
        self._names: dict[str, Tile] = {}
        self._loops: list[_Loop] = []
        self._closed: list[Tile] = []
        self.module = ir.Module.create(ir.Location.name(label))
        with ir.InsertionPoint(self.module.body), ir.Location.name(label):
            self._func = func.FuncOp(name, ([], []))
            self._block = self._func.add_entry_block()

    # -- arguments ---------------------------------------------------------------------------
    def buffer(
        self, name: str, dtype: str, shape: Sequence[int | str], access: Access = "r"
    ) -> Buffer:
        """Declares a buffer argument; a string extent is a symbol (also an i32 argument)."""
        return self._declare(Argument(name, dtype, tuple(shape), access))

    def weight(self, name: str, dtype: str, shape: Sequence[int]) -> Buffer:
        """Declares a buffer of the model's parameters, which no kernel writes."""
        return self._declare(Argument(name, dtype, tuple(shape), is_weight=True, is_settled=True))

    def settled(
        self, name: str, dtype: str, shape: Sequence[int | str], access: Access = "r"
    ) -> Buffer:
        """Declares a buffer that the launch before this one does not write (the plan is checked for it).

        Its loads need not wait for that launch's end (docs/gpu-kernels.md).
        """
        return self._declare(Argument(name, dtype, tuple(shape), access, is_settled=True))

    def _declare(self, spec: Argument) -> Buffer:
        assert not self._names, f"declare buffer {spec.name} before symbols and scalars"
        assert spec.shape is not None
        dynamic = ir.ShapedType.get_dynamic_size()
        extents = [dynamic if isinstance(n, str) else n for n in spec.shape]
        kind = ir.MemRefType.get(extents, element_type(spec.dtype))
        return Buffer(self, spec, self._argument(spec, kind))

    def scalar(self, name: str, dtype: Literal["i32", "f32"] = "i32") -> Tile:
        """Declares a scalar argument."""
        assert name not in self._names, f"scalar {name} is declared twice"
        value = self._argument(Argument(name, dtype, None), element_type(dtype))
        self._names[name] = Tile(self, value)
        return self._names[name]

    def symbol(self, name: str) -> Tile:
        """The i32 argument that carries a symbolic extent."""
        return self._names[name] if name in self._names else self.scalar(name)

    def _argument(self, spec: Argument, kind: ir.Type) -> ir.Value:
        self.arguments.append(spec)
        return self._block.add_argument(kind, ir.Location.name(self.label))

    def grid(self, x: str | int, y: str | int = 1, z: str | int = 1) -> None:
        """The grid, as expressions of package/expr.py over symbols and scalar arguments."""
        self.grid_rule = (str(x), str(y), str(z))

    # -- values ------------------------------------------------------------------------------
    def program_id(self, axis: int) -> Tile:
        """This program's coordinate in the grid (i32)."""
        i32 = ir.IntegerType.get_signless(32)
        with here(self):
            return Tile(self, ops.ProgramId(i32, ir.IntegerAttr.get(i32, axis)).result)

    def constant(self, value: Number, dtype: str) -> Tile:
        kind = element_type(dtype)
        is_int = dtype in ("i32", "i8", "i16", "i1")
        attr = (
            ir.IntegerAttr.get(kind, int(value)) if is_int else ir.FloatAttr.get(kind, float(value))
        )
        with here(self):
            return Tile(self, arith.ConstantOp(kind, attr).result)

    def scalar_value(self, value: Index) -> Tile:
        return value if isinstance(value, Tile) else self.constant(value, "i32")

    def full(self, shape: Sequence[int], value: Number, dtype: str = "f32") -> Tile:
        return self.constant(value, dtype).to_shape(shape)

    def zeros(self, shape: Sequence[int], dtype: str = "f32") -> Tile:
        return self.full(shape, 0, dtype)

    def arange(self, size: int) -> Tile:
        """0 .. size-1 as i32 ``[size]``."""
        kind = ir.RankedTensorType.get([size], ir.IntegerType.get_signless(32))
        with here(self):
            return Tile(self, ops.Iota(kind).result)

    # -- control -----------------------------------------------------------------------------
    @contextmanager
    def loop(
        self, start: Index, stop: Index, step: Index = 1, *, carry: Sequence[Tile] = ()
    ) -> Iterator[tuple[Tile, tuple[Tile, ...]]]:
        """``for i in range(start, stop, step)``; carried values go round through :meth:`yield_`."""
        bounds = [self.scalar_value(v).value for v in (start, stop, step)]
        with here(self):
            op = scf.ForOp(*bounds, [v.value for v in carry])
        loop = _Loop(op)
        self._loops.append(loop)
        with ir.InsertionPoint(op.body):
            yield (
                Tile(self, op.induction_variable),
                tuple(Tile(self, v) for v in op.inner_iter_args),
            )
            if not carry:
                self.yield_()
        self._loops.pop()
        self._closed = [Tile(self, v) for v in op.results]

    def yield_(self, *values: Tile) -> None:
        """Ends the innermost loop's body with the next values of what it carries."""
        with here(self):
            scf.YieldOp([v.value for v in values])

    def results(self) -> tuple[Tile, ...]:
        """What the loop just closed carried out."""
        return tuple(self._closed)

    @contextmanager
    def when(self, condition: Tile) -> Iterator[None]:
        """Runs its body only where the scalar i1 ``condition`` holds (effects only, no results)."""
        with here(self):
            op = scf.IfOp(condition.value)
        with ir.InsertionPoint(op.then_block):
            yield
            with here(self):
                scf.YieldOp([])

    # -- the end -----------------------------------------------------------------------------
    @contextmanager
    def body(self) -> Iterator[None]:
        """Everything of the program is built inside this; closes and verifies it."""
        with ir.InsertionPoint(self._block), ir.Location.name(self.label):
            yield
            symbols = [n for a in self.arguments for n in (a.shape or ()) if isinstance(n, str)]
            for name in dict.fromkeys(symbols):
                self.symbol(name)
            func.ReturnOp([])
        assert self.grid_rule is not None, f"{self.name}: no grid rule"
        kind = ir.FunctionType.get([a.type for a in self._block.arguments], [])
        self._func.attributes["function_type"] = ir.TypeAttr.get(kind)
        self._func.attributes["arg_attrs"] = ir.ArrayAttr.get(
            [_describe(a) for a in self.arguments]
        )
        grid = ir.ArrayAttr.get([ir.StringAttr.get(e) for e in self.grid_rule])
        self._func.attributes["tile.grid"] = grid
        self.module.operation.verify()


def _describe(argument: Argument) -> ir.DictAttr:
    entries: dict[str, ir.Attribute] = {"tile.name": ir.StringAttr.get(argument.name)}
    if argument.shape is not None:
        extents = [ir.StringAttr.get(str(n)) for n in argument.shape]
        entries["tile.shape"] = ir.ArrayAttr.get(extents)
        entries["tile.access"] = ir.StringAttr.get(argument.access)
    if argument.is_weight:
        entries["tile.weight"] = ir.UnitAttr.get()
    if argument.is_settled:
        entries["tile.settled"] = ir.UnitAttr.get()
    return ir.DictAttr.get(entries)
