"""The merge of the parts as the beginning of the value product."""

from collections.abc import Iterator

from k3compiler.dialects.k3.dialect import BatchType
from k3compiler.dialects.mla.ops import MlaOp, gate_faults
from k3compiler.ir.dialect import (
    Fault,
    IntegerAttr,
    Operand,
    Result,
    Tensor,
    positive,
    ranked,
    shape,
    shaped,
    want,
)


class MergeUp(MlaOp, name="merge_up"):
    """``mla.value_up(mla.merge(acc, top, total))``, which is one kernel where tokens are few.

    Shapes: acc [S, NSPLIT, H, L] f32, top, total [S, NSPLIT, H] f32, kv_b [H*(nope+v), L], gate [S, H*v] (or none)
    -> o [S, H*v].
    """

    EQUATION = "4.3"
    acc: Operand[Tensor]
    top: Operand[Tensor]
    total: Operand[Tensor]
    kv_b: Operand[Tensor]
    batch: Operand[BatchType]
    num_heads: IntegerAttr
    v_dim: IntegerAttr
    split_tokens: IntegerAttr
    o: Result[Tensor]
    gate: Operand[Tensor] | None = None

    def faults(self) -> Iterator[Fault]:
        heads, v = self.num_heads.value, self.v_dim.value
        yield ranked("acc", self.acc, 4)
        yield shaped("acc", self.acc, None, None, heads, shape(self.kv_b)[-1])
        for name in ("top", "total"):
            yield shaped(name, getattr(self, name), None, None, heads)
        yield want("rows of kv_b over heads", 0, (shape(self.kv_b)[0] or 0) % max(heads, 1))
        yield shaped("o", self.o, None, heads * v)
        yield positive("split_tokens", self.split_tokens.value)
        yield from gate_faults(self)
