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
    optional,
    positive,
    same,
    shape,
    shaped,
    typed,
    want,
)


class AttnRes(Dialect, name="attn_res"):
    """The mix over depth, one op a kernel."""


class AttnResOp(Checked, dialect=AttnRes, traits=[Pure]):
    """Base of the attn_res ops."""


class MixNorm(AttnResOp, name="mix_norm"):
    """Running-sum add, scores, softmax over depth, mix and the following RMSNorm in one.

    ``P' = P + addend`` (P itself without one), ``mix = AttnRes(snapshots ∪ {P'}; norm, query, eps)``,
    ``normed = RMSNorm(mix; out_norm, out_eps)``. P' is rounded to its format before it is used.
    Without snapshots there is no norm, query or eps and ``mix = P'``: a plain pre-norm residual.
    Without an addend nobody reads ``new_sum``.

    Shapes: sum [T, D], out_norm [D], snapshots M times [T, D], query, norm [D] (or none), addend [T, D] (or none)
    -> new_sum, normed [T, D].
    """

    OPTIONAL = ("eps",)
    EQUATION = "2.3,2.4"
    sum: Operand[Tensor]
    out_norm: Operand[Tensor]
    snapshots: Sequence[Operand[Tensor]]
    out_eps: FloatAttr
    new_sum: Result[Tensor]
    normed: Result[Tensor]
    query: Operand[Tensor] | None = None
    norm: Operand[Tensor] | None = None
    addend: Operand[Tensor] | None = None

    def faults(self) -> Iterator[Fault]:
        yield typed("sum", self.sum, *FLOATS)
        yield shaped("out_norm", self.out_norm, shape(self.sum)[-1])
        yield from self._mix_faults()
        if self.addend is not None:
            yield same("addend", self.sum, self.addend)
        yield same("new_sum", self.sum, self.new_sum)
        yield same("normed", self.sum, self.normed)
        if self.addend is None and any(True for _ in self.new_sum.uses):
            yield "new_sum: expected no use without an addend (use sum)"
        yield positive("out_eps", self.out_eps.value)

    def _mix_faults(self) -> Iterator[Fault]:
        snapshots, eps = list(self.snapshots), optional(self, "eps")
        for snapshot in snapshots:
            yield same("snapshot", self.sum, snapshot)
        for name in ("query", "norm"):
            weight = getattr(self, name)
            yield want(f"{name} given", bool(snapshots), weight is not None)
            yield None if weight is None else shaped(name, weight, shape(self.sum)[-1])
        yield want("eps given", bool(snapshots), eps is not None)
        yield None if eps is None else positive("eps", eps)
