"""Gate and up projections with their activation."""

from collections.abc import Iterator

from k3compiler.dialects.k3.dialect import FLOATS, K3Op
from k3compiler.dialects.k3.experts import activation_faults
from k3compiler.ir.dialect import (
    Fault,
    Operand,
    Result,
    StringAttr,
    Tensor,
    ranked,
    shape,
    shaped,
    typed,
    want,
)


class GatedLinear(K3Op, name="gated_linear"):
    """``y = act(x Wgᵀ, x Wuᵀ)`` of ``W = [Wg; Wu]``, gate and up never rounded; activation as k3.experts.

    Shapes: x [T, in], weight [2 F, in] -> y [T, F].
    """

    OPTIONAL = ("beta", "linear_beta")
    EQUATION = "5.3"
    x: Operand[Tensor]
    weight: Operand[Tensor]
    activation: StringAttr
    y: Result[Tensor]

    def faults(self) -> Iterator[Fault]:
        yield ranked("x", self.x, 2)
        yield typed("x", self.x, *FLOATS)
        yield typed("y", self.y, *FLOATS)
        yield want("x element type", self.weight.type.element_type, self.x.type.element_type)
        rows, columns = shape(self.weight)
        yield want("columns of x", columns, shape(self.x)[-1])
        yield want("rows of weight past a pair", 0, (rows or 0) % 2)
        yield shaped("y", self.y, None, (rows or 0) // 2)
        yield from activation_faults(self)
