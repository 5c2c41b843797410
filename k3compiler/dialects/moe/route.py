"""The router and the sort of what it chooses, together."""

from collections.abc import Iterator

from k3compiler.dialects.k3.experts import route_faults
from k3compiler.dialects.moe.ops import MoeOp, sort_faults
from k3compiler.ir.dialect import (
    BoolAttr,
    Fault,
    FloatAttr,
    IntegerAttr,
    Operand,
    Result,
    Tensor,
)


class Route(MoeOp, name="route"):
    """``moe.sort(moe.route_topk(logits, bias).ids)``: for few tokens, whose choices need not go through memory.

    Shapes: logits [T, E] f32, bias [E] f32 -> weights [T, K] f32, ids [T, K] i32 as moe.route_topk; pairs
    [NB*block_rows], block_expert [NB], num_blocks [1] i32 as moe.sort.
    """

    OPTIONAL = ("first_expert",)
    EQUATION = "5.1,5.2"
    logits: Operand[Tensor]
    bias: Operand[Tensor]
    top_k: IntegerAttr
    renormalize: BoolAttr
    scale: FloatAttr
    num_experts: IntegerAttr
    block_rows: IntegerAttr
    weights: Result[Tensor]
    ids: Result[Tensor]
    pairs: Result[Tensor]
    block_expert: Result[Tensor]
    num_blocks: Result[Tensor]

    def faults(self) -> Iterator[Fault]:
        yield from route_faults(self, self.logits)
        yield from sort_faults(self)
