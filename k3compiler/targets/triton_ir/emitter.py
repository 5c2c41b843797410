"""From a tile program to the text of a Triton IR module."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Literal

from k3compiler.ir.bindings import ir
from k3compiler.ir.tile_program import ProgramInfo, describe
from k3compiler.package.expr import evaluate, symbols_of
from k3compiler.targets.triton_ir.convert import emit_cast
from k3compiler.targets.triton_ir.elementwise import (
    emit_compare,
    emit_constant,
    emit_roundeven,
    emit_same,
    emit_select,
    emit_tanh,
)
from k3compiler.targets.triton_ir.facts import MAX_PROGRAMS, Facts, Range
from k3compiler.targets.triton_ir.matrix import emit_dot, emit_dot_scaled
from k3compiler.targets.triton_ir.memory import BufferView, emit_load, emit_store
from k3compiler.targets.triton_ir.text import TextBuilder, tensor

NextGrid = Literal["end", "loaded", "wait", "start"]
Emit = Callable[["Emitter", Any], "str | None"]
ALIGNMENT = 16  # bytes; every buffer a kernel is given starts at a multiple of it


@dataclass(frozen=True, slots=True)
class Form:
    """What the text may use.

    Attributes:
        has_tf32: f32 products can run as tf32.
        has_early_start: grids start before others end (PDL).
        next_grid: when the next may: at the ``end`` of every program, from its ``wait`` for the former on, when it has
            ``loaded`` (a sum needs all that it loads), or at its ``start``. Few programs leave the rest of the chip
            to the next, whose loads theirs would have to wait behind.
        target_ops: how ops are emitted that only this target has.
    """

    has_tf32: bool
    has_early_start: bool = False
    next_grid: NextGrid = "end"
    target_ops: Mapping[str, Emit] = field(default_factory=dict[str, Any])


def emit_triton(module: ir.Module, form: Form) -> str:
    """A tile program as a Triton IR module, every op with its location.

    The function has the program's symbol and arguments: buffers as 16-byte aligned pointers, scalars as they are.
    """
    return Emitter(module, form).module()


def program_label(module: ir.Module) -> str:
    """What the program was built for: op and equation, from the function's location."""
    location = next(iter(module.body.operations)).location
    return location.name_str if isinstance(location, ir.NameLoc) else "unknown"


class Emitter:
    """Walks one tile program; ``text`` collects what was emitted."""

    def __init__(self, module: ir.Module, form: Form) -> None:
        self.form = form
        self.text = TextBuilder()
        self.facts = Facts()
        self.buffers: dict[Any, BufferView] = {}
        self._names: dict[Any, str] = {}
        self._function = next(iter(module.body.operations))
        self._info: ProgramInfo = describe(module)
        self._scalars: dict[str, Any] = {}
        self._must_wait = False
        self._last_load: Any = None
        self._has_loaded = False
        self._settled: set[Any] = set()

    def name(self, value: Any) -> str:
        """The SSA name of a tile program's value."""
        return self._names[value]

    def iota(self, extent: int) -> str:
        """0 .. extent-1; Triton wants at least two elements for a range."""
        kind = tensor([extent], "i32")
        if extent == 1:
            return self.text.constant("0", kind)
        return self.text.op(f"tt.make_range {{end = {extent} : i32, start = 0 : i32}} : {kind}")

    # -- structure ---------------------------------------------------------------------------
    def module(self) -> str:
        block = self._function.regions[0].blocks[0]
        # line information takes the file from the function: the kernel's own lines
        location = str(block.operations[0].operation.location)
        self.text.location = location
        signature = ", ".join(self._arguments())
        self._must_wait = self.form.has_early_start
        if self.form.has_early_start and self.form.next_grid == "start":
            self._start_next_grid()
        self._last_load = _last_of(block, "tile.load")
        self.block(block)
        end = self.text.alias(location)
        head = (
            f"  tt.func public @{self._info.symbol}({signature}) attributes {{noinline = false}} {{"
        )
        lines = ["module {", head, self.text.body(), f"  }} {end}", f"}} {end}"]
        return "\n".join([*lines, self.text.aliases(), ""])

    def _await_former_grid(self) -> None:
        """Waits for the former grid to end, before memory is touched that a kernel writes.

        Every program of every kernel waits, so that a grid that has ended says that all before it have. The op does
        nothing where the launch does not ask for the early start, and nothing the second time.
        """
        self.text.line("tt.grid_dependency_wait")
        if self.form.next_grid == "wait":
            self._start_next_grid()
        self._must_wait = False

    def _count_loads(self, ops: list[Any]) -> None:
        """After a reduction behind the last load, in the form ``loaded``, the next grid may start."""
        if self.form.next_grid != "loaded" or not self.form.has_early_start:
            return
        if self._last_load is not None and ops[-1].operation == self._last_load:
            self._has_loaded = True
        elif self._has_loaded and _is_reduction(ops[0]):
            self._start_next_grid()
            self._has_loaded = False

    def _touches_former(self, op: Any) -> bool:
        """Whether an op needs what kernels before this one wrote, or must not be seen by them."""
        name = op.operation.name
        if name == "tile.load":
            return op.buffer not in self._settled
        return name in ("tile.store", "scf.for", "func.return")

    def _start_next_grid(self) -> None:
        """The next grid may start when every program has been here: it asks for its weights, then it waits."""
        self.text.line("tt.grid_dependency_launch_dependents")

    def end(self, _op: Any) -> None:
        if self.form.has_early_start and self.form.next_grid == "end":
            self._start_next_grid()
        self.text.line("tt.return")

    def _arguments(self) -> list[str]:
        block = self._function.regions[0].blocks[0]
        pairs = list(zip(self._info.arguments, block.arguments, strict=True))
        self._scalars = {a.name: v for a, v in pairs if a.shape is None}
        symbols = {n for a, _ in pairs for n in (a.shape or ()) if isinstance(n, str)}
        signature: list[str] = []
        for argument, value in pairs:
            name = self._names[value] = f"%arg{len(signature)}"
            where = self.text.alias(self.text.location)
            if argument.shape is None:
                known = Range(0) if argument.name in symbols else Range()
                self.facts.atom(value, known)
                signature.append(f"{name}: {value.type} {where}")
                continue
            element = str(value.type.element_type)
            extents = tuple(n if isinstance(n, int) else self._scalars[n] for n in argument.shape)
            self.buffers[value] = BufferView(name, element, extents)
            if argument.is_settled:
                self._settled.add(value)
            hint = f"{{tt.divisibility = {ALIGNMENT} : i32}}"
            signature.append(f"{name}: !tt.ptr<{element}> {hint} {where}")
        return signature

    def block(self, block: Any) -> None:
        """Emits the ops of a block; reductions that stand side by side as one."""
        for _, run in groupby(block.operations, _reduction_of):
            ops = list(run)
            self.text.location = str(ops[0].operation.location)
            if self._must_wait and self._touches_former(ops[0]):
                self._await_former_grid()
            for op in ops:
                self.facts.learn(op)
            made = self.reduce(ops) if _is_reduction(ops[0]) else [self._emit(ops[0])]
            for op, name in zip(ops, made, strict=True):
                if name is not None:
                    self._names[op.operation.results[0]] = name
            self._count_loads(ops)

    def _emit(self, op: Any) -> str | None:
        name = op.operation.name
        return (self.form.target_ops.get(name) or EMIT[name])(self, op)

    def program_id(self, op: Any) -> str:
        axis = op.attributes["axis"].value
        rule = self._info.grid[axis]
        high = MAX_PROGRAMS if symbols_of(rule) else evaluate(rule, {}) - 1
        below = self._scalars.get(rule)
        self.facts.atom(op.operation.results[0], Range(0, high), below)
        return self.text.op(f"tt.get_program_id {'xyz'[axis]} : i32")

    def loop(self, op: Any) -> None:
        """scf.for over i32, with what it carries."""
        start, stop, step, *carried = op.operation.operands
        body, results = op.regions[0].blocks[0], list(op.operation.results)
        induction, *inner = list(body.arguments)
        self.facts.loop(induction, *(self.facts.form(v) for v in (start, stop, step)))
        for value in (induction, *inner):
            self._names[value] = self.text.fresh()
        bounds = f"{self.name(start)} to {self.name(stop)} step {self.name(step)}"
        head = f"scf.for {self.name(induction)} = {bounds}"
        if results:
            base = self.text.fresh()
            carry = ", ".join(
                f"{self.name(a)} = {self.name(b)}" for a, b in zip(inner, carried, strict=True)
            )
            types = ", ".join(str(v.type) for v in results)
            head = f"{base}:{len(results)} = {head} iter_args({carry}) -> ({types})"
            for i, value in enumerate(results):
                self._names[value] = f"{base}#{i}"
        with self.text.region(f"{head} : i32 {{"):
            self.block(body)

    def branch(self, op: Any) -> None:
        """scf.if without results; a wait in it is not one for what follows, where it is not taken."""
        must_wait = self._must_wait
        with self.text.region(f"scf.if {self.name(op.operation.operands[0])} {{"):
            self.block(op.regions[0].blocks[0])
        self._must_wait = must_wait

    def yield_(self, op: Any) -> None:
        values = list(op.operation.operands)
        if not values:
            self.text.line("scf.yield")
            return
        names = ", ".join(self.name(v) for v in values)
        self.text.line(f"scf.yield {names} : {', '.join(str(v.type) for v in values)}")

    # -- shapes ------------------------------------------------------------------------------
    def _reshaped(self, op: Any, name: str, attributes: str = "") -> str:
        source, out = op.operation.operands[0], op.operation.results[0]
        return self.text.op(f"{name} {self.name(source)}{attributes} : {source.type} -> {out.type}")

    def expand_dims(self, op: Any) -> str:
        axis = op.attributes["axis"].value
        return self._reshaped(op, "tt.expand_dims", f" {{axis = {axis} : i32}}")

    def trans(self, op: Any) -> str:
        return self._reshaped(op, "tt.trans", " {order = array<i32: 1, 0>}")

    def scan(self, op: Any) -> str:
        made, operand = self.text.fresh(), op.operation.operands[0]
        attributes = f"axis = {op.attributes['axis'].value} : i32, reverse = false"
        opening = f'{made} = "tt.scan"({self.name(operand)}) <{{{attributes}}}> ({{'
        types = f"({operand.type}) -> {op.operation.results[0].type}"
        self._combine([op], "scan", opening, types)
        return made

    def reduce(self, ops: list[Any]) -> list[str]:
        """tile.reduce of tiles of one shape along one axis: all of them meet at the barriers of one op."""
        made = self.text.fresh()
        operands = [op.operation.operands[0] for op in ops]
        names = ", ".join(self.name(v) for v in operands)
        count = f":{len(ops)}" if len(ops) > 1 else ""
        axis = ops[0].attributes["axis"].value
        opening = f'{made}{count} = "tt.reduce"({names}) <{{axis = {axis} : i32}}> ({{'
        results = ", ".join(str(op.operation.results[0].type) for op in ops)
        results = f"({results})" if len(ops) > 1 else results
        types = f"({', '.join(str(v.type) for v in operands)}) -> {results}"
        self._combine(ops, "reduce", opening, types)
        return [f"{made}#{i}" for i in range(len(ops))] if len(ops) > 1 else [made]

    def _combine(self, ops: list[Any], verb: str, opening: str, types: str) -> None:
        """An op whose region combines two elements of each operand."""
        elements = [str(op.operation.operands[0].type.element_type) for op in ops]
        left, right = ([self.text.fresh() for _ in ops] for _ in range(2))
        with self.text.region(opening, f"}}) : {types}"):
            where = self.text.alias(self.text.location)
            given = zip([*left, *right], elements * 2, strict=True)
            self.text.label(f"^bb0({', '.join(f'{n}: {e} {where}' for n, e in given)}):")
            made = [
                self.text.op(f"{_combiner(op, e)} {a}, {b} : {e}")
                for op, a, b, e in zip(ops, left, right, elements, strict=True)
            ]
            self.text.line(f"tt.{verb}.return {', '.join(made)} : {', '.join(elements)}")


def _last_of(block: Any, name: str) -> Any:
    """The last op of that name in the block itself."""
    found = [op.operation for op in block.operations if op.operation.name == name]
    return found[-1] if found else None


def _is_reduction(op: Any) -> bool:
    return op.operation.name == "tile.reduce"


def _reduction_of(op: Any) -> object:
    """What reductions that can be one op have in common; other ops stay alone.

    Neighbours of one shape do not depend on each other: a result has a rank less than its operand.
    """
    if not _is_reduction(op):
        return op
    return tuple(op.operation.operands[0].type.shape), op.attributes["axis"].value


def _combiner(op: Any, element: str) -> str:
    return _COMBINERS[op.attributes["kind"].value][element == "i32"]


_COMBINERS = {
    "add": ("arith.addf", "arith.addi"),
    "max": ("arith.maxnumf", "arith.maxsi"),
    "min": ("arith.minnumf", "arith.minsi"),
}
_SAME = (
    *(f"arith.{n}f" for n in ("add", "sub", "mul", "div", "neg", "minnum", "maxnum")),
    *(f"arith.{n}" for n in ("addi", "subi", "muli", "divsi", "remsi", "andi", "ori", "xori")),
    *(f"arith.{n}" for n in ("shli", "shrui", "minsi", "maxsi")),
    *(f"math.{n}" for n in ("exp", "exp2", "log", "sqrt", "rsqrt", "absf", "floor")),
)
EMIT: dict[str, Emit] = {
    **dict.fromkeys(_SAME, emit_same),
    "arith.constant": emit_constant,
    "arith.cmpi": emit_compare,
    "arith.cmpf": emit_compare,
    "arith.select": emit_select,
    "math.tanh": emit_tanh,
    "math.roundeven": emit_roundeven,
    "tile.program_id": Emitter.program_id,
    "tile.load": emit_load,
    "tile.store": emit_store,
    "tile.iota": lambda e, op: e.iota(op.operation.results[0].type.shape[0]),
    "tile.splat": lambda e, op: e._reshaped(op, "tt.splat"),
    "tile.broadcast": lambda e, op: e._reshaped(op, "tt.broadcast"),
    "tile.reshape": lambda e, op: e._reshaped(op, "tt.reshape"),
    "tile.bitcast": lambda e, op: e._reshaped(op, "tt.bitcast"),
    "tile.expand_dims": Emitter.expand_dims,
    "tile.trans": Emitter.trans,
    "tile.scan": Emitter.scan,
    "tile.cast": emit_cast,
    "tile.dot": emit_dot,
    "tile.dot_scaled": emit_dot_scaled,
    "scf.for": Emitter.loop,
    "scf.if": Emitter.branch,
    "scf.yield": Emitter.yield_,
    "func.return": Emitter.end,
}
