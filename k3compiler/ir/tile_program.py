"""What a tile program says about itself: arguments, symbols and grid, read back from its text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from k3compiler.ir.bindings import ir
from k3compiler.package.expr import bind_extents


@dataclass(frozen=True, slots=True)
class ArgumentInfo:
    """One kernel argument in launch order; ``shape`` None marks a scalar, strings in it are symbols."""

    name: str
    dtype: str
    shape: tuple[int | str, ...] | None
    access: str = "r"
    is_weight: bool = False
    is_settled: bool = False


@dataclass(frozen=True, slots=True)
class ProgramInfo:
    """The launch-side view of a tile program."""

    symbol: str
    arguments: tuple[ArgumentInfo, ...]
    grid: tuple[str, str, str]

    def symbols_from(self, values: Mapping[str, Any]) -> dict[str, int]:
        """Scalars and symbolic extents for concrete arguments (arrays and numbers by name)."""
        known: dict[str, int] = {}
        for argument in self.arguments:
            if argument.shape is None:
                if argument.name in values and argument.dtype == "i32":
                    known[argument.name] = int(values[argument.name])
                continue
            pairs = zip(argument.shape, values[argument.name].shape, strict=True)
            known |= bind_extents((n, size) for n, size in pairs if isinstance(n, str))
        return known


def describe(module: ir.Module) -> ProgramInfo:
    """Reads the description that the builder left in the function's attributes."""
    function = next(iter(module.body.operations))
    arguments = [
        _argument(attributes, value.type)
        for attributes, value in zip(
            function.attributes["arg_attrs"], function.regions[0].blocks[0].arguments, strict=True
        )
    ]
    grid: Sequence[str] = [e.value for e in function.attributes["tile.grid"]]
    return ProgramInfo(
        function.attributes["sym_name"].value, tuple(arguments), (grid[0], grid[1], grid[2])
    )


def _argument(attributes: Any, kind: ir.Type) -> ArgumentInfo:
    element = str(kind.element_type if isinstance(kind, ir.MemRefType) else kind)
    dtype = {"f8E4M3FN": "e4m3"}.get(element, element)
    name = attributes["tile.name"].value
    if "tile.shape" not in attributes:
        return ArgumentInfo(name, dtype, None)
    extents = tuple(_extent(e.value) for e in attributes["tile.shape"])
    access = attributes["tile.access"].value
    flags = ("tile.weight" in attributes, "tile.settled" in attributes)
    return ArgumentInfo(name, dtype, extents, access, *flags)


def _extent(text: str) -> int | str:
    return int(text) if text.isdigit() else text
