"""Attention Residuals in one kernel."""

from collections.abc import Iterator, Sequence

from k3compiler.dialects.k3.dialect import FLOATS
from k3compiler.ir.dialect import (
    Checked,
    Dialect,
    Fault,
    FloatAttr,
    Operand,
    Pure,
    Result,
    Tensor,
    positive,
    same,
    shape,
    shaped,
    typed,
)


class AttnRes(Dialect, name="attn_res"):
    """The mix over depth, one op a kernel."""


class AttnResOp(Checked, dialect=AttnRes, traits=[Pure]):
    """Base of the attn_res ops."""


class MixNorm(AttnResOp, name="mix_norm"):
    """Running-sum add, scores, softmax over depth, mix and the following RMSNorm in one.

    ``P' = P + addend`` (P itself without one), ``mix = AttnRes(snapshots ∪ {P'}; norm, query, eps)``,
    ``normed = RMSNorm(mix; out_norm, out_eps)``. P' is rounded to its format before it is used.
    Without an addend nobody reads ``new_sum``.

    Shapes: sum [T, D], query, norm, out_norm [D], addend [T, D] (or none), snapshots M times [T, D]
    -> new_sum, normed [T, D].
    """

    EQUATION = "2.3,2.4"
    sum: Operand[Tensor]
    query: Operand[Tensor]
    norm: Operand[Tensor]
    out_norm: Operand[Tensor]
    snapshots: Sequence[Operand[Tensor]]
    eps: FloatAttr
    out_eps: FloatAttr
    new_sum: Result[Tensor]
    normed: Result[Tensor]
    addend: Operand[Tensor] | None = None

    def faults(self) -> Iterator[Fault]:
        width = shape(self.sum)[-1]
        yield typed("sum", self.sum, *FLOATS)
        for name in ("query", "norm", "out_norm"):
            yield shaped(name, getattr(self, name), width)
        if self.addend is not None:
            yield same("addend", self.sum, self.addend)
        for snapshot in self.snapshots:
            yield same("snapshot", self.sum, snapshot)
        yield same("new_sum", self.sum, self.new_sum)
        yield same("normed", self.sum, self.normed)
        if self.addend is None and any(True for _ in self.new_sum.uses):
            yield "new_sum: expected no use without an addend (use sum)"
        yield positive("eps", self.eps.value)
        yield positive("out_eps", self.out_eps.value)
