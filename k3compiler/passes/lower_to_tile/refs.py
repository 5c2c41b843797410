"""What a value of the fused graph is at run time: a buffer, or some columns of one."""

from __future__ import annotations

from dataclasses import dataclass

from k3compiler.package.expr import Expr
from k3compiler.package.step_inputs import INPUT_SHAPES

ITEM_BYTES = {"f32": 4, "bf16": 2, "f16": 2, "i32": 4, "i8": 1, "e4m3": 1}


@dataclass(frozen=True, slots=True)
class Ref:
    """A row-major buffer of the plan, or its columns ``offset .. offset + cols``.

    ``shape`` is the whole buffer's, leading extent first; ``name`` is what a plan's argument list says.
    ``pitch`` is the symbol of the rows between two items of a state (package/pitches.py).
    """

    name: str
    dtype: str
    shape: tuple[Expr, ...]
    offset: int = 0
    cols: int | None = None
    pitch: str | None = None

    @property
    def width(self) -> int:
        """Elements of one row of the whole buffer."""
        size = 1
        for extent in self.shape[1:]:
            assert isinstance(extent, int), f"{self.name}: inner extents are static, found {extent}"
            size *= extent
        return size

    @property
    def columns(self) -> int:
        """Columns that the value has."""
        return self.width if self.cols is None else self.cols

    @property
    def rows(self) -> Expr:
        """The leading extent."""
        return self.shape[0]

    def slice(self, offset: int, cols: int) -> Ref:
        """Some of this value's columns."""
        return Ref(self.name, self.dtype, self.shape, self.offset + offset, cols)

    @property
    def whole(self) -> bool:
        """Whether the value is the whole buffer."""
        return self.offset == 0 and self.columns == self.width


def byte_size(ref: Ref) -> tuple[str, int]:
    """Bytes of the buffer as (product of its symbolic extents, factor)."""
    factors: list[str] = []
    static = ITEM_BYTES[ref.dtype]
    for extent in ref.shape:
        if isinstance(extent, int):
            static *= extent
        else:
            factors.append(extent if extent.isidentifier() else f"({extent})")
    return "*".join(factors), static


def step_input(name: str) -> Ref:
    """One of the step's metadata arrays."""
    dtype, shape = INPUT_SHAPES[name]
    return Ref(name, dtype, shape)
