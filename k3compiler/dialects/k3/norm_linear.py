"""A linear map of some columns of a norm."""

from collections.abc import Iterator

from k3compiler.dialects.k3.dialect import FLOATS, K3Op
from k3compiler.ir.dialect import (
    Fault,
    FloatAttr,
    Operand,
    Result,
    StringAttr,
    Tensor,
    element,
    positive,
    ranked,
    shape,
    shaped,
    typed,
)


class NormLinear(K3Op, name="norm_linear"):
    """``y = k3.rms_norm(x, norm_weight){part} Wᵀ``, + residual where there is one.

    ``part`` (an expression in ``rank``) says which of x's equal parts the map takes; the statistics are of all.

    Shapes: x [T, D], norm_weight [D], weight [out, D / parts], residual [T, out] (or none) -> y [T, out].
    """

    EQUATION = "notation"
    x: Operand[Tensor]
    norm_weight: Operand[Tensor]
    weight: Operand[Tensor]
    eps: FloatAttr
    part: StringAttr
    y: Result[Tensor]
    residual: Operand[Tensor] | None = None

    def faults(self) -> Iterator[Fault]:
        yield ranked("x", self.x, 2)
        yield ranked("weight", self.weight, 2)
        columns, width = shape(self.x)[-1] or 0, shape(self.weight)[-1] or 1
        yield shaped("norm_weight", self.norm_weight, columns)
        if columns % width:
            yield f"weight: expected equal parts of {columns} columns, found {width}"
        yield shaped("y", self.y, None, shape(self.weight)[0])
        yield typed("x", self.x, *FLOATS)
        yield typed("y", self.y, element(self.x))
        yield positive("eps", self.eps.value)
        if self.residual is not None:
            yield shaped("residual", self.residual, None, shape(self.weight)[0])
