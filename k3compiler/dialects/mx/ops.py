"""Block-scaled number formats."""

from collections.abc import Iterator

from k3compiler.dialects.k3.dialect import FLOATS
from k3compiler.ir.dialect import (
    Checked,
    Dialect,
    Fault,
    Operand,
    Pure,
    Result,
    Tensor,
    ranked,
    same,
    shape,
    shaped,
    typed,
    want,
)

GROUP = 32


class Mx(Dialect, name="mx"):
    """Conversions to the OCP microscaling formats."""


class MxOp(Checked, dialect=Mx, traits=[Pure]):
    """Base of the mx ops."""


class Quantize(MxOp, name="quantize"):
    """MXFP8: E4M3 elements with one E8M0 scale a group of 32 columns.

    ``scale = ceil(log2(amax / 448)) + 127`` (0 for a group of zeros), so that nothing saturates; elements
    ``x / 2^(scale-127)`` to nearest even.

    Shapes: x [T, D] -> values [T, D] f8E4M3FN, scale [T, D/32] i8.
    """

    EQUATION = "6"
    x: Operand[Tensor]
    values: Result[Tensor]
    scale: Result[Tensor]

    def faults(self) -> Iterator[Fault]:
        yield ranked("x", self.x, 2)
        yield typed("x", self.x, *FLOATS)
        width = shape(self.x)[-1] or 0
        yield want("columns past a whole group", 0, width % GROUP)
        yield shaped("values", self.values, None, width)
        yield typed("values", self.values, "f8E4M3FN")
        yield shaped("scale", self.scale, None, width // GROUP)
        yield typed("scale", self.scale, "i8")


class Round(MxOp, name="round"):
    """What mx.quantize's values and scales mean, in x's own type: exact in bf16, but for numbers below 2^-126.

    For chips whose matrix unit takes no MXFP8: the numbers are its, the products those of the type.

    Shapes: x [T, D] -> y [T, D].
    """

    EQUATION = "6"
    x: Operand[Tensor]
    y: Result[Tensor]

    def faults(self) -> Iterator[Fault]:
        yield ranked("x", self.x, 2)
        yield typed("x", self.x, *FLOATS)
        yield want("columns past a whole group", 0, (shape(self.x)[-1] or 0) % GROUP)
        yield same("y", self.x, self.y)
