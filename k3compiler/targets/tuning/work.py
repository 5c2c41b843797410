"""What one program of a kernel does, counted on its tile program."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod
from typing import Any

from k3compiler.ir.context import parse_module

UNKNOWN_SPAN = (
    512  # iterations times step of a loop whose bounds the program only learns when it runs
)
ITEM_BITS = {
    "f8E4M3FN": 8,
    "bf16": 16,
    "f16": 16,
    "f32": 32,
    "i1": 1,
    "i8": 8,
    "i32": 32,
    "i64": 64,
}
_TENSOR = re.compile(r"tensor<((?:\d+x)*)(\w+)>")
MATRIX_ROWS = 64  # what the matrix units take at least on the left


@dataclass(slots=True)
class Work:
    """Counts of one program.

    Attributes:
        first_bytes: read outside of loops, all of it asked for at once.
        loop_bytes: read inside of loops, in all.
        step_bytes: read by one iteration of the innermost loop that reads.
        staged_bytes: of those, what feeds matrix products and lies in shared memory.
        steps: iterations of that loop, in all.
        written_bytes: stored.
        matrix_flops: of the products, with their rows as the matrix units see them.
        elements: made by everything that is not a product.
        held_bytes: the largest set of tiles carried round a loop, or the largest tile.
    """

    first_bytes: int = 0
    loop_bytes: int = 0
    step_bytes: int = 0
    staged_bytes: int = 0
    steps: int = 0
    written_bytes: int = 0
    matrix_flops: int = 0
    elements: int = 0
    held_bytes: int = 0


def work_of(tile_text: str) -> Work:
    """The work of one program of the kernel in ``tile_text``."""
    module = parse_module(tile_text)
    function = next(iter(module.body.operations))
    counter = _Counter(Work())
    counter.block(function.regions[0].blocks[0], 1, is_loop=False)
    return counter.work


def _extents(kind: Any) -> tuple[list[int], int]:
    """Shape and item bits of a tensor type; no extents for a scalar."""
    match = _TENSOR.match(str(kind))
    if match is None:
        return [], ITEM_BITS.get(str(kind), 32)
    return [int(n) for n in match[1].split("x") if n], ITEM_BITS.get(match[2], 32)


def _bytes(kind: Any) -> int:
    shape, bits = _extents(kind)
    return prod(shape) * bits // 8


def _constant(value: Any) -> int | None:
    owner = value.owner
    if getattr(owner, "name", "") != "arith.constant":
        return None
    found = re.search(r"-?\d+", str(owner.attributes["value"]))
    return int(found[0]) if found else None


class _Counter:
    def __init__(self, work: Work) -> None:
        self.work = work

    def block(self, block: Any, times: int, *, is_loop: bool) -> None:
        step_bytes, staged, fed = 0, 0, self._fed_to_products(block) if is_loop else set()
        for op in block.operations:
            name, operation = op.operation.name, op.operation
            if name == "scf.for":
                self._loop(operation, times)
            elif name == "scf.if":
                for region in operation.regions:
                    for inner in region.blocks:
                        self.block(inner, times, is_loop=is_loop)
            elif name == "tile.load":
                size = _bytes(operation.results[0].type)
                if is_loop:
                    self.work.loop_bytes += size * times
                    step_bytes += size
                    staged += size if operation.results[0] in fed else 0
                else:
                    self.work.first_bytes += size * times
                self._holds(size)
            elif name == "tile.store":
                self.work.written_bytes += _bytes(operation.operands[0].type) * times
            elif name in ("tile.dot", "tile.dot_scaled"):
                self._product(operation, times, is_scaled=name == "tile.dot_scaled")
            elif len(operation.results) == 1:
                self.work.elements += prod(_extents(operation.results[0].type)[0]) * times
        if is_loop and step_bytes > self.work.step_bytes:
            self.work.step_bytes, self.work.staged_bytes = step_bytes, staged
            self.work.steps = times

    def _loop(self, operation: Any, times: int) -> None:
        first, last, step = (_constant(v) for v in list(operation.operands)[:3])
        span = UNKNOWN_SPAN if first is None or last is None else last - first
        trips = -(-span // (step or 1))
        self._holds(sum(_bytes(r.type) for r in operation.results))
        self.block(operation.regions[0].blocks[0], times * max(trips, 1), is_loop=True)

    def _holds(self, size: int) -> None:
        self.work.held_bytes = max(self.work.held_bytes, size)

    def _product(self, operation: Any, times: int, *, is_scaled: bool) -> None:
        a, b = (_extents(v.type)[0] for v in list(operation.operands)[:2])
        rows, columns = a[0], _extents(operation.results[0].type)[0][-1]
        depth = b[-2] if b[-1] == columns else a[-1]
        self.work.matrix_flops += 2 * max(rows, MATRIX_ROWS) * columns * depth * times
        if is_scaled:
            self.work.elements += (rows + columns) * depth * times  # expanded in registers

    @staticmethod
    def _fed_to_products(block: Any) -> set[Any]:
        """Loads whose value goes to a product, directly or transposed."""
        fed: set[Any] = set()
        for op in reversed(list(block.operations)):
            operands = list(op.operation.operands)
            if op.operation.name in ("tile.dot", "tile.dot_scaled"):
                fed.update(operands)
            elif op.operation.name == "tile.trans" and op.operation.results[0] in fed:
                fed.add(operands[0])
        return fed
