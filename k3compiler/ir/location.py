"""Where an op comes from: its name, the layer and the equation of the spec.

Carried by every op as nested name locations, ``loc("kda.output"("layers.3"("spec 3.5")))``; so that
they survive rewriting, text, and the way down to line information.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from k3compiler.ir.bindings import ir


@dataclass(frozen=True, slots=True)
class Origin:
    """What an op was made for.

    Attributes:
        op: the op's name, e.g. ``kda.output``.
        layer: 0-based layer, None outside the layers.
        equation: section of the spec, e.g. ``3.5``; several are joined by commas.
    """

    op: str
    layer: int | None
    equation: str

    def renamed(self, op: str, equation: str | None = None) -> Origin:
        """The same place for another op (a fused one, say)."""
        return replace(self, op=op, equation=equation or self.equation)

    def location(self) -> Any:
        """The MLIR location (needs a current context)."""
        inner = ir.Location.name(f"spec {self.equation}") if self.equation else None
        if self.layer is not None:
            inner = ir.Location.name(f"layers.{self.layer}", childLoc=inner)
        return ir.Location.name(self.op, childLoc=inner)


def _names(location: Any) -> list[str]:
    if isinstance(location, ir.NameLoc):
        return [location.name_str, *_names(location.child_loc)]
    if isinstance(location, ir.FusedLoc):
        return _names(location.locations[0])
    return []


def origin_of(op: Any) -> Origin:
    """Reads an op's location back; what it does not say is empty (text written by hand, say)."""
    layer, equation = None, ""
    names = _names(op.location)
    for name in names:
        if name.startswith("layers."):
            layer = int(name.removeprefix("layers."))
        elif name.startswith("spec "):
            equation = name.removeprefix("spec ")
    return Origin(op.operation.name, layer, equation)
