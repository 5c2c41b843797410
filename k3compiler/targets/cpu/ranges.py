"""Bounds of i32 scalars, to drop checks that cannot fail.

Arithmetic is taken not to overflow; division and remainder are of non-negative numbers (docs/tile.md).
"""

from __future__ import annotations

from math import gcd

from k3compiler.targets.cpu.graph import Buffer, Program, Value

LIMIT = 2**31 - 1
Interval = tuple[int, int]
_UNKNOWN: Interval = (-LIMIT - 1, LIMIT)


class Ranges:
    """Intervals of a program's scalars, computed when asked."""

    def __init__(self, program: Program) -> None:
        self.grid = program.grid
        self.known: dict[Value, Interval] = {}
        for argument in program.arguments:
            if isinstance(argument, Buffer):
                for extent in argument.extents:
                    if isinstance(extent, Value):
                        self.known[extent] = (0, LIMIT)

    def of(self, value: Value) -> Interval:
        if value not in self.known:
            low, high = self._compute(value)
            self.known[value] = max(low, -LIMIT - 1), min(high, LIMIT)
        return self.known[value]

    def extent(self, extent: int | Value) -> Interval:
        return (extent, extent) if isinstance(extent, int) else self.of(extent)

    def divisor(self, value: int | Value) -> int:
        """A number that divides ``value`` (0 only for 0)."""
        if isinstance(value, int):
            return abs(value)
        op = value.op
        if op is None:
            return 1
        match op.name:
            case "arith.constant":
                return abs(int(op.attributes["value"]))
            case "arith.addi" | "arith.subi" | "arith.minsi" | "arith.maxsi":
                return gcd(*(self.divisor(v) for v in op.operands))
            case "arith.muli":
                a, b = (self.divisor(v) for v in op.operands)
                return a * b
            case "scf.for" if op.arguments and value is op.arguments[0]:
                return gcd(self.divisor(op.operands[0]), self.divisor(op.operands[2]))
            case _:
                return 1

    def _compute(self, value: Value) -> Interval:
        op = value.op
        if op is None or value.dtype != "i32" or value.shape:
            return _UNKNOWN
        if op.name == "scf.for":
            is_index = bool(op.arguments) and value is op.arguments[0]
            return self._index(op.operands) if is_index else _UNKNOWN
        if op.name == "tile.program_id":
            size = self.grid[op.attributes["axis"].value]
            return 0, int(size) - 1 if size.isdigit() else LIMIT
        if op.name == "arith.constant":
            number = int(op.attributes["value"])
            return number, number
        if op.name == "arith.select":
            a, b = (self.of(v) for v in op.operands[1:])
            return min(a[0], b[0]), max(a[1], b[1])
        if len(op.operands) != 2 or any(v.dtype != "i32" or v.shape for v in op.operands):
            return _UNKNOWN
        return _combine(op.name, *(self.of(v) for v in op.operands))

    def _index(self, bounds: list[Value]) -> Interval:
        low, stop, step = (self.of(v) for v in bounds[:3])
        last = stop[1] - 1
        if low[0] == low[1] and step[0] == step[1] > 0 and stop[0] == stop[1]:
            last = low[0] + max(stop[0] - 1 - low[0], 0) // step[0] * step[0]
        return low[0], max(low[0], last)


def _combine(name: str, a: Interval, b: Interval) -> Interval:
    match name:
        case "arith.addi":
            return a[0] + b[0], a[1] + b[1]
        case "arith.subi":
            return a[0] - b[1], a[1] - b[0]
        case "arith.muli":
            corners = [x * y for x in a for y in b]
            return min(corners), max(corners)
        case "arith.minsi":
            return min(a[0], b[0]), min(a[1], b[1])
        case "arith.maxsi":
            return max(a[0], b[0]), max(a[1], b[1])
        case "arith.divsi":
            return max(a[0], 0) // max(b[1], 1), a[1] // max(b[0], 1)
        case "arith.remsi":
            return 0, max(min(a[1], b[1] - 1), 0)
        case "arith.andi" if b[0] >= 0:
            return 0, b[1]
        case _:
            return _UNKNOWN
