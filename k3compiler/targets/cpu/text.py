"""A writer of MLIR text: fresh names, cached constants, loops, and places to emit earlier than "here"."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

Lines = list["str | Lines"]


def vector(width: int | None, element: str) -> str:
    """The MLIR type of ``width`` lanes; None is a scalar."""
    return element if width is None else f"vector<{width}x{element}>"


@dataclass(slots=True)
class Loop:
    """An open ``scf.for``: its induction variable (i64) and what it carries."""

    index: str
    carried: list[str]
    results: list[str]
    types: list[str]


class Writer:
    """Collects the body of one function.

    ``header`` dominates everything (constants, allocas). ``lines`` is the current place; :meth:`place` makes
    a spot that can be filled later, :meth:`at` emits into one.
    """

    def __init__(self) -> None:
        self.header: list[str] = []
        self.root: Lines = []
        self.lines: Lines = self.root
        self._count = 0
        self._constants: dict[tuple[str, str], str] = {}

    # -- plain ops -----------------------------------------------------------------------------
    def name(self) -> str:
        self._count += 1
        return f"%v{self._count}"

    def emit(self, operation: str) -> str:
        """``%new = operation``; returns the name."""
        name = self.name()
        self.lines.append(f"{name} = {operation}")
        return name

    def do(self, operation: str) -> None:
        """An operation without results."""
        self.lines.append(operation)

    def constant(self, literal: str, kind: str) -> str:
        """A constant, emitted once in the header."""
        key = (literal, kind)
        if key not in self._constants:
            name = self.name()
            if kind.startswith("vector") and not literal.startswith("dense"):
                literal = f"dense<{literal}>"
            self.header.append(f"{name} = arith.constant {literal} : {kind}")
            self._constants[key] = name
        return self._constants[key]

    def i64(self, value: int) -> str:
        return self.constant(str(value), "i64")

    def lanes(self, width: int) -> str:
        """0, 1, ... width-1 as i32 lanes."""
        text = ", ".join(str(i) for i in range(width))
        return self.constant(f"dense<[{text}]>", vector(width, "i32"))

    def alloca(self, count: int, element: str) -> str:
        """A buffer on the stack, in the function's entry block, aligned to a cache line."""
        size, name = self.i64(count), self.name()
        self.header.append(
            f"{name} = llvm.alloca {size} x {element} {{alignment = 64 : i64}} : (i64) -> !llvm.ptr"
        )
        return name

    # -- i64 arithmetic with folding of the trivial cases ----------------------------------------
    def add(self, a: str, b: str) -> str:
        zero = self.i64(0)
        if zero in (a, b):
            return b if a == zero else a
        return self.emit(f"arith.addi {a}, {b} : i64")

    def mul(self, a: str, b: str) -> str:
        zero, one = self.i64(0), self.i64(1)
        if zero in (a, b):
            return zero
        if one in (a, b):
            return b if a == one else a
        return self.emit(f"arith.muli {a}, {b} : i64")

    def sub(self, a: str, b: str) -> str:
        return a if b == self.i64(0) else self.emit(f"arith.subi {a}, {b} : i64")

    def clamp(self, value: str, low: int, high: str) -> str:
        """min(max(value, low), high) in i64."""
        raised = self.emit(f"arith.maxsi {value}, {self.i64(low)} : i64")
        return self.emit(f"arith.minsi {raised}, {high} : i64")

    def widen(self, value: str) -> str:
        """i32 to i64, signed."""
        return self.emit(f"arith.extsi {value} : i32 to i64")

    def narrow(self, value: str) -> str:
        return self.emit(f"arith.trunci {value} : i64 to i32")

    # -- memory ----------------------------------------------------------------------------------
    def address(self, pointer: str, offset: str, element: str) -> str:
        """``pointer + offset`` elements."""
        if offset == self.i64(0):
            return pointer
        return self.emit(
            f"llvm.getelementptr {pointer}[{offset}] : (!llvm.ptr, i64) -> !llvm.ptr, {element}"
        )

    def load(self, pointer: str, kind: str, align: int) -> str:
        return self.emit(f"llvm.load {pointer} {{alignment = {align} : i64}} : !llvm.ptr -> {kind}")

    def store(self, value: str, pointer: str, kind: str, align: int) -> None:
        self.do(f"llvm.store {value}, {pointer} {{alignment = {align} : i64}} : {kind}, !llvm.ptr")

    # -- structure -------------------------------------------------------------------------------
    def place(self) -> Lines:
        """A spot here that :meth:`at` can fill later."""
        spot: Lines = []
        self.lines.append(spot)
        return spot

    @contextmanager
    def at(self, spot: Lines) -> Iterator[None]:
        """Emits into ``spot`` inside the block."""
        previous, self.lines = self.lines, spot
        yield
        self.lines = previous

    @contextmanager
    def loop(
        self,
        low: str,
        high: str,
        step: str,
        *,
        carry: Sequence[tuple[str, str]] = (),
        index_type: str = "i64",
    ) -> Iterator[Loop]:
        """An ``scf.for``; ``carry`` holds (initial value, type); close its body with :meth:`carry_on`."""
        index, types = self.name(), [kind for _, kind in carry]
        carried = [self.name() for _ in carry]
        group = self.name()
        results = [f"{group}#{i}" for i in range(len(carry))] if len(carry) > 1 else [group]
        head = f"scf.for {index} = {low} to {high} step {step}"
        if carry:
            pairs = ", ".join(f"{a} = {v}" for a, (v, _) in zip(carried, carry, strict=True))
            many = f":{len(carry)}" if len(carry) > 1 else ""
            head = f"{group}{many} = {head} iter_args({pairs}) -> ({', '.join(types)})"
        self.do(f"{head} : {index_type} {{")
        yield Loop(index, carried, results[: len(carry)], types)
        self.do("}")

    def carry_on(self, loop: Loop, values: Sequence[str]) -> None:
        """Ends a loop body with the next carried values."""
        if values:
            self.do(f"scf.yield {', '.join(values)} : {', '.join(loop.types)}")

    @contextmanager
    def when(self, condition: str) -> Iterator[None]:
        self.do(f"scf.if {condition} {{")
        yield
        self.do("}")

    def choose(
        self,
        condition: str,
        types: Sequence[str],
        then: Callable[[], Sequence[str]],
        other: Callable[[], Sequence[str]],
    ) -> list[str]:
        """An ``scf.if`` with results (or, without types, with two branches)."""
        group, kinds = self.name(), ", ".join(types)
        many = f":{len(types)}" if len(types) > 1 else ""
        head = f"scf.if {condition}"
        self.do(f"{group}{many} = {head} -> ({kinds}) {{" if types else f"{head} {{")
        for branch, end in ((then, "} else {"), (other, "}")):
            values = branch()
            if types:
                self.do(f"scf.yield {', '.join(values)} : {kinds}")
            self.do(end)
        return [f"{group}#{i}" for i in range(len(types))] if len(types) > 1 else [group]

    def call(self, function: str, arguments: Sequence[tuple[str, str]]) -> None:
        """Calls a function of this module that returns nothing."""
        values, kinds = ", ".join(v for v, _ in arguments), ", ".join(k for _, k in arguments)
        self.do(f"llvm.call @{function}({values}) : ({kinds}) -> ()")

    def text(self) -> str:
        """Everything, in order."""
        return "\n".join([*self.header, *_flatten(self.root)])


def _flatten(lines: Lines) -> Iterator[str]:
    for line in lines:
        if isinstance(line, str):
            yield line
        else:
            yield from _flatten(line)
