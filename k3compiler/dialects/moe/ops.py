"""Routing, sorting by expert, grouped expert matrices, and their sum."""

from collections.abc import Iterator
from typing import Any

from k3compiler.config import MX_GROUP
from k3compiler.dialects.k3.dialect import FLOATS
from k3compiler.dialects.k3.experts import activation_faults, expert_shapes, route_faults
from k3compiler.ir.dialect import (
    BoolAttr,
    Checked,
    Dialect,
    Fault,
    FloatAttr,
    IntegerAttr,
    Operand,
    Pure,
    Result,
    StringAttr,
    Tensor,
    one_of,
    optional,
    positive,
    ranked,
    shape,
    shaped,
    typed,
    want,
)

FORMATS = ("plain", "a16w4", "a8w4")


class Moe(Dialect, name="moe"):
    """The expert layer, one op a kernel (or a short run of them).

    A *pair* is a token and one of its K chosen experts: pair ``t*K + k``. Sorting puts the pairs of this rank's
    experts into blocks of ``block_rows`` rows, each block of one expert, the last of each filled up with -1.
    """


class MoeOp(Checked, dialect=Moe, traits=[Pure]):
    """Base of the moe ops."""


class RouteTopk(MoeOp, name="route_topk"):
    """Sigmoid of the logits, bias-corrected top-k (lowest index on a tie), renormalised weights.

    Shapes: logits [T, E] f32, bias [E] f32 -> weights [T, K] f32, ids [T, K] i32.
    """

    EQUATION = "5.1"
    logits: Operand[Tensor]
    bias: Operand[Tensor]
    top_k: IntegerAttr
    renormalize: BoolAttr
    scale: FloatAttr
    weights: Result[Tensor]
    ids: Result[Tensor]

    def faults(self) -> Iterator[Fault]:
        yield from route_faults(self, self.logits)


def sort_faults(op: Any) -> Iterator[Fault]:
    """Of the ids and what comes of sorting them."""
    yield ranked("ids", op.ids, 2)
    yield positive("num_experts", op.num_experts.value)
    rows = op.block_rows.value
    if rows < 8 or rows & (rows - 1):
        yield f"block_rows: expected a power of two from 8 on, found {rows}"
    yield shaped("pairs", op.pairs, None)
    yield shaped("block_expert", op.block_expert, None)
    yield shaped("num_blocks", op.num_blocks, 1)
    for name in ("ids", "pairs", "block_expert", "num_blocks"):
        yield typed(name, getattr(op, name), "i32")


class Sort(MoeOp, name="sort"):
    """Pairs grouped by expert: counts, offsets, scatter.

    Local experts are ``first_expert .. first_expert + num_experts`` (``first_expert`` an optional expression in
    ``rank``, 0 if absent); other pairs are left out. ``pairs[i]`` is the pair of sorted row i or -1;
    ``block_expert[b]`` the local expert of block b; ``num_blocks[0]`` how many blocks are in use.
    Within an expert, pairs ascend.

    Shapes: ids [T, K] i32 -> pairs [NB*block_rows] i32, block_expert [NB] i32, num_blocks [1] i32.
    """

    OPTIONAL = ("first_expert",)
    EQUATION = "5.2"
    ids: Operand[Tensor]
    num_experts: IntegerAttr
    block_rows: IntegerAttr
    pairs: Result[Tensor]
    block_expert: Result[Tensor]
    num_blocks: Result[Tensor]

    def faults(self) -> Iterator[Fault]:
        yield from sort_faults(self)


def _grouped_faults(op: Any, x: Any) -> Iterator[Fault]:
    """Blocks, activation format and scales of a grouped matrix product."""
    yield one_of("format", FORMATS, op.format.value)
    yield shaped("pairs", op.pairs, None)
    yield shaped("block_expert", op.block_expert, None)
    yield shaped("num_blocks", op.num_blocks, 1)
    quantized = op.format.value == "a8w4"
    yield want("x_scale given", quantized, op.x_scale is not None)
    yield typed("x", x, *(("f8E4M3FN",) if quantized else FLOATS))
    if op.x_scale is not None:
        yield shaped("x_scale", op.x_scale, None, (shape(x)[-1] or 0) // 32)
        yield typed("x_scale", op.x_scale, "i8")


def gate_up_faults(op: Any) -> Iterator[Fault]:
    """Of the first product, whatever the format of h."""
    yield from _grouped_faults(op, op.x)
    yield from activation_faults(op)
    yield positive("top_k", op.top_k.value)
    yield positive("block_rows", op.block_rows.value)
    packed = op.format.value != "plain"
    yield want("s1 given", packed, op.s1 is not None)
    yield want("s3 given", packed, op.s3 is not None)
    (count, inner), width = shape(op.w1)[:2], shape(op.x)[-1]
    yield from expert_shapes("w1", op.w1, op.s1, count or 0, inner, width)
    yield from expert_shapes("w3", op.w3, op.s3, count or 0, inner, width)
    yield shaped("h", op.h, None, inner)


class GateUp(MoeOp, name="gate_up"):
    """``h = act(w1 x, w3 x)`` of every sorted row: two grouped GEMMs and the activation.

    Row i of h belongs to ``pairs[i]``; it reads token ``pairs[i] // top_k``. Rows without a pair are undefined.
    Formats: ``plain``; ``a16w4`` (x as it is, MXFP4 weights); ``a8w4`` (x in MXFP8 with x_scale).
    With ``rounds`` (true or absent) h is what mx.round makes of the f32 result; F is a multiple of 32 then.

    Shapes: x [T, L], x_scale [T, L/32] i8 (a8w4), pairs, block_expert, num_blocks as moe.sort,
    w1, w3 [E, F, L] (packed: i8 [E, F, L/2]), s1, s3 i8 [E, F, L/32] -> h [NB*block_rows, F].
    """

    OPTIONAL = ("beta", "linear_beta", "rounds")
    EQUATION = "5.2,5.3"
    x: Operand[Tensor]
    pairs: Operand[Tensor]
    block_expert: Operand[Tensor]
    num_blocks: Operand[Tensor]
    w1: Operand[Tensor]
    w3: Operand[Tensor]
    format: StringAttr
    activation: StringAttr
    top_k: IntegerAttr
    block_rows: IntegerAttr
    h: Result[Tensor]
    x_scale: Operand[Tensor] | None = None
    s1: Operand[Tensor] | None = None
    s3: Operand[Tensor] | None = None

    def faults(self) -> Iterator[Fault]:
        yield from gate_up_faults(self)
        yield typed("h", self.h, *FLOATS)
        if optional(self, "rounds"):
            yield want("columns of h past a whole group", 0, (shape(self.w1)[1] or 0) % MX_GROUP)


class Down(MoeOp, name="down"):
    """``y[pair] = weights[pair] (w2 h[i])`` for every sorted row i with ``pairs[i] = pair``.

    Rows of y whose pair is not local stay unwritten. Formats as moe.gate_up, for h.

    Shapes: x [NB*block_rows, F] (h), x_scale [NB*block_rows, F/32] i8 (a8w4), pairs, block_expert, num_blocks
    as moe.sort, weights [T, K] f32, w2 [E, L, F] (packed: i8 [E, L, F/2]), scales i8 [E, L, F/32] once -> y [T*K, L].
    """

    EQUATION = "5.2"
    x: Operand[Tensor]
    pairs: Operand[Tensor]
    block_expert: Operand[Tensor]
    num_blocks: Operand[Tensor]
    weights: Operand[Tensor]
    w2: Operand[Tensor]
    format: StringAttr
    block_rows: IntegerAttr
    y: Result[Tensor]
    x_scale: Operand[Tensor] | None = None
    s2: Operand[Tensor] | None = None

    def faults(self) -> Iterator[Fault]:
        yield from _grouped_faults(self, self.x)
        yield positive("block_rows", self.block_rows.value)
        yield ranked("weights", self.weights, 2)
        yield typed("weights", self.weights, "f32")
        yield typed("y", self.y, *FLOATS)
        yield want("s2 given", self.format.value != "plain", self.s2 is not None)
        count, width = shape(self.w2)[:2]
        yield from expert_shapes("w2", self.w2, self.s2, count or 0, width, shape(self.x)[-1])
        yield shaped("y", self.y, None, width)


class Combine(MoeOp, name="combine"):
    """``r[t] = Σ_k y[t*K + k]`` over the local pairs, in fp32; with ``norm_weight`` the RMSNorm of that sum.

    A norm here is right only where no other rank holds experts: the sum must be complete first.

    Shapes: y [T*K, L], ids [T, K] i32, norm_weight [L] (or none) -> r [T, L].
    """

    OPTIONAL = ("first_expert", "eps")
    EQUATION = "5.2"
    y: Operand[Tensor]
    ids: Operand[Tensor]
    num_experts: IntegerAttr
    r: Result[Tensor]
    norm_weight: Operand[Tensor] | None = None

    def faults(self) -> Iterator[Fault]:
        yield ranked("y", self.y, 2)
        yield ranked("ids", self.ids, 2)
        yield typed("ids", self.ids, "i32")
        yield positive("num_experts", self.num_experts.value)
        yield shaped("r", self.r, None, shape(self.y)[-1])
        eps = optional(self, "eps")
        yield want("eps given", self.norm_weight is not None, eps is not None)
        yield None if eps is None else positive("eps", eps)
        if self.norm_weight is not None:
            yield shaped("norm_weight", self.norm_weight, shape(self.y)[-1])
