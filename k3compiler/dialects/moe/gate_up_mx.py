"""The first product of the experts with its result already in MXFP8."""

from collections.abc import Iterator

from k3compiler.config import MX_GROUP
from k3compiler.dialects.moe.ops import MoeOp, gate_up_faults
from k3compiler.ir.dialect import (
    Fault,
    IntegerAttr,
    Operand,
    Result,
    StringAttr,
    Tensor,
    shape,
    shaped,
    typed,
    want,
)


class GateUpMx(MoeOp, name="gate_up_mx"):
    """``h, h_scale = mx.quantize(act(w1 x, w3 x))``: moe.gate_up whose f32 result is never rounded to another format.

    Format ``a8w4``. Rows without a pair are undefined, their scales too.

    Shapes: operands as moe.gate_up with x_scale, s1 and s3 given; F a multiple of 32 -> h [NB*block_rows, F]
    f8E4M3FN, h_scale [NB*block_rows, F/32] i8.
    """

    OPTIONAL = ("beta", "linear_beta")
    EQUATION = "5.2,5.3,6"
    x: Operand[Tensor]
    pairs: Operand[Tensor]
    block_expert: Operand[Tensor]
    num_blocks: Operand[Tensor]
    w1: Operand[Tensor]
    w3: Operand[Tensor]
    x_scale: Operand[Tensor]
    s1: Operand[Tensor]
    s3: Operand[Tensor]
    format: StringAttr
    activation: StringAttr
    top_k: IntegerAttr
    block_rows: IntegerAttr
    h: Result[Tensor]
    h_scale: Result[Tensor]

    def faults(self) -> Iterator[Fault]:
        yield from gate_up_faults(self)
        yield want("format", "a8w4", self.format.value)
        inner = shape(self.w1)[1] or 0
        yield want("columns of h past a whole group", 0, inner % MX_GROUP)
        yield typed("h", self.h, "f8E4M3FN")
        yield shaped("h_scale", self.h_scale, None, inner // MX_GROUP)
        yield typed("h_scale", self.h_scale, "i8")
