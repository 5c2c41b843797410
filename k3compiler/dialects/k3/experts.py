"""Router and routed experts on the graph level."""

from collections.abc import Iterator
from typing import Any

from k3compiler.dialects.k3.dialect import FLOATS, K3Op
from k3compiler.ir.dialect import (
    BoolAttr,
    Fault,
    FloatAttr,
    IntegerAttr,
    Operand,
    Result,
    StringAttr,
    Tensor,
    one_of,
    optional,
    positive,
    shape,
    shaped,
    typed,
    want,
)

FORMATS = ("mxfp4", "plain")
ACTIVATIONS = ("situ", "silu")
MX_GROUP = 32


class Route(K3Op, name="route"):
    """The ``top_k`` experts with the largest ``scores + bias`` (lowest index on a tie) and their weights.

    Weights are the unbiased scores, divided by their sum + 1e-20 if ``renormalize``, times ``scale``.

    Shapes: scores [T, E] f32 (after the sigmoid), bias [E] f32 -> weights [T, K] f32, ids [T, K] i32.
    """

    EQUATION = "5.1"
    scores: Operand[Tensor]
    bias: Operand[Tensor]
    top_k: IntegerAttr
    renormalize: BoolAttr
    scale: FloatAttr
    weights: Result[Tensor]
    ids: Result[Tensor]

    def faults(self) -> Iterator[Fault]:
        yield from route_faults(self, self.scores)


def route_faults(op: Any, scores: Any) -> Iterator[Fault]:
    """The rules that the router shares with its fused form."""
    experts, top_k = shape(scores)[-1], op.top_k.value
    yield typed("scores", scores, "f32")
    yield shaped("bias", op.bias, experts)
    if not 0 < top_k <= (experts or 0):
        yield f"top_k: expected 1 to {experts}, found {top_k}"
    yield shaped("weights", op.weights, None, top_k)
    yield shaped("ids", op.ids, None, top_k)
    yield typed("weights", op.weights, "f32")
    yield typed("ids", op.ids, "i32")


def activation_faults(op: Any) -> Iterator[Fault]:
    """``activation`` situ needs ``beta`` (and may have ``linear_beta``), silu has neither."""
    name = op.activation.value
    yield one_of("activation", ACTIVATIONS, name)
    beta, cap = optional(op, "beta"), optional(op, "linear_beta")
    if name == "situ":
        yield "beta: expected a number, found none" if beta is None else positive("beta", beta)
        yield None if cap is None else positive("linear_beta", cap)
    elif beta is not None or cap is not None:
        yield "beta, linear_beta: expected none with activation silu"


def expert_shapes(
    what: str, weight: Any, scales: Any | None, count: int, rows: int | None, columns: int | None
) -> Iterator[Fault]:
    """Stacked expert matrices: plain ``[E, rows, columns]``, or packed bytes and their e8m0 scales."""
    if scales is None:
        yield shaped(what, weight, count, rows, columns)
        yield typed(what, weight, *FLOATS)
        return
    columns = columns or 0
    yield shaped(what, weight, count, rows, columns // 2)
    yield typed(what, weight, "i8")
    yield shaped(f"scale of {what}", scales, count, rows, columns // MX_GROUP)
    yield typed(f"scale of {what}", scales, "i8")


class Experts(K3Op, name="experts"):
    """``r = Σ_k ω_k w2(act(w1 x, w3 x))`` over a token's chosen experts.

    Formats: ``plain`` weights, or ``mxfp4``: bytes packed along the input with scales s1, s3, s2.
    ``first_expert`` (optional, an expression in ``rank``): the weights hold the experts from there on, and
    ``r`` sums those only.

    Shapes: x [T, L], ids [T, K] i32, weights [T, K] f32, w1, w3 [E, F, L], w2 [E, L, F]
    (mxfp4: i8 [E, F, L/2], scales i8 [E, F, L/32]) -> r [T, L].
    """

    OPTIONAL = ("beta", "linear_beta", "first_expert")
    EQUATION = "5.2"
    x: Operand[Tensor]
    ids: Operand[Tensor]
    weights: Operand[Tensor]
    w1: Operand[Tensor]
    w3: Operand[Tensor]
    w2: Operand[Tensor]
    format: StringAttr
    activation: StringAttr
    r: Result[Tensor]
    s1: Operand[Tensor] | None = None
    s3: Operand[Tensor] | None = None
    s2: Operand[Tensor] | None = None

    def faults(self) -> Iterator[Fault]:
        packed = self.format.value == "mxfp4"
        yield one_of("format", FORMATS, self.format.value)
        for name in ("s1", "s3", "s2"):
            yield want(f"{name} given", packed, getattr(self, name) is not None)
        yield from activation_faults(self)
        yield shaped("weights", self.weights, *shape(self.ids))
        yield shaped("r", self.r, *shape(self.x))
        width, (count, inner) = shape(self.x)[-1], shape(self.w1)[:2]
        yield from expert_shapes("w1", self.w1, self.s1, count or 0, inner, width)
        yield from expert_shapes("w3", self.w3, self.s3, count or 0, inner, width)
        yield from expert_shapes("w2", self.w2, self.s2, count or 0, width, inner)
