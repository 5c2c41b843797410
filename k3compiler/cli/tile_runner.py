"""Runs the tile programs that a package carries, whatever chip it was built for: ``k3c verify --on cpu``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from k3compiler.check.case import Array
    from k3compiler.package.manifest import KernelRecord
    from k3compiler.package.reader import Package


class TileProgramRunner:
    """A :class:`k3compiler.check.runner.KernelRunner` over the package's ``.tile.mlir`` files.

    The programs run in the numpy interpreter, which is what docs/tile.md says they mean.

    Raises:
        K3Error: ``K3-V002`` for a program that does not verify.
    """

    def __init__(self, package: Package) -> None:
        from k3compiler.ir import new_context

        self.package = package
        self.context = new_context()

    def run(
        self, kernel: KernelRecord, arguments: Mapping[str, Array | int | float]
    ) -> dict[str, Array]:
        """Buffers by name after every program of the grid ran over copies of ``arguments``."""
        from k3compiler.check.runner import symbol_values
        from k3compiler.ir import parse_module
        from k3compiler.ir.tile_interpreter import run_tile_program
        from k3compiler.package.expr import evaluate

        text = self.package.read(kernel.files["tile"]).decode()
        module = parse_module(text, source=kernel.files["tile"], context=self.context)
        values: dict[str, Any] = {name: _copy(value) for name, value in arguments.items()}
        symbols = symbol_values(kernel, arguments)
        grid = [evaluate(size, symbols) for size in kernel.grid]
        run_tile_program(module, values, grid)
        written = [a.name for a in kernel.args if a.kind == "buffer" and a.access != "r"]
        return {name: values[name] for name in written}


def _copy(value: Array | int | float) -> Array | int | float:
    return value if isinstance(value, (int, float)) else value.copy()
