"""Kernels that do not wait for each other, beside each other in one grid: one launch in place of several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from k3compiler.dialects.tile.builder import Argument, Buffer, Program
from k3compiler.dialects.tile.values import Tile, maximum, minimum
from k3compiler.kernels.base import family_body
from k3compiler.package.expr import evaluate_with, symbols_of

Part = tuple[str, Mapping[str, Any]]  # family, parameters


def beside(p: Program, *, parts: Sequence[Part]) -> None:
    """The programs of each part, one part behind the other along the grid.

    No part reads or overwrites what another writes. Each has a grid of one axis, and a branch to itself in which it
    does what it would do alone: its weights are loaded first there too. A program has the registers and the shared
    memory of the part that needs most.

    Shapes: those of the parts; the argument ``x`` of part i is ``x_i`` here. Symbols are shared.
    """
    views = [_View(p, index, _alone(p, part)) for index, part in enumerate(parts)]
    pid, first = p.program_id(0), p.scalar_value(0)
    for view, (family, params) in zip(views, parts, strict=True):
        count = view.count()
        view.place = maximum(minimum(pid - first, count - 1), 0)
        with p.when((pid >= first) & (pid < first + count)):
            family_body(family)(view, **params)
        first = first + count
    p.grid("+".join(f"({view.rule})" for view in views))


def _alone(p: Program, part: Part) -> Program:
    """A part as a program by itself, for its arguments and its grid."""
    program, (family, params) = Program(p.name, p.label), part
    with program.body():
        family_body(family)(program, **params)
    return program


class _View(Program):
    """The program as a part's body sees it: arguments by the part's own names, the part's own place in the grid."""

    place: Tile

    def __init__(self, whole: Program, index: int, alone: Program) -> None:
        self.name, self.label = whole.name, whole.label
        self._whole, self._index = whole, index
        self._loops, self._closed = [], []
        assert alone.grid_rule is not None and alone.grid_rule[1:] == ("1", "1"), "one axis"
        self.rule = alone.grid_rule[0]
        self._buffers = {
            a.name: whole._declare(replace(a, name=f"{a.name}_{index}"))
            for a in alone.arguments
            if a.shape is not None
        }

    def count(self) -> Tile:
        """The number of the part's programs."""
        symbols = {name: self.symbol(name) for name in symbols_of(self.rule)}
        functions = {"cdiv": lambda a, b: (a + (b - 1)) // b}
        return self._whole.scalar_value(evaluate_with(self.rule, symbols, functions))

    def _declare(self, spec: Argument) -> Buffer:
        return self._buffers[spec.name]

    def scalar(self, name: str, dtype: Literal["i32", "f32"] = "i32") -> Tile:
        return self._whole.scalar(f"{name}_{self._index}", dtype)

    def symbol(self, name: str) -> Tile:
        return self._whole.symbol(name)

    def program_id(self, axis: int) -> Tile:
        assert axis == 0, "one axis"
        return self.place

    def grid(self, x: str | int, y: str | int = 1, z: str | int = 1) -> None:
        assert (str(x), y, z) == (self.rule, 1, 1), "as the part has it alone"
