"""Routed experts as sort, two grouped products and a sum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from k3compiler.dialects import k3, moe
from k3compiler.ir import Pattern, rewrite_module
from k3compiler.ir.dialect import element, shape, tensor
from k3compiler.passes.base import Pass
from k3compiler.passes.match import build, has_one_use, made_by, options_of


@dataclass(frozen=True, slots=True)
class FuseMoe(Pass):
    """The LatentMoE's middle: experts grouped, activation and router weights inside, the latent norm with the sum.

    From: 1. To: 2. The norm joins the sum only where it follows at once: between ranks a collective stands between.

    ``k3.experts`` becomes ``moe.sort → moe.gate_up → moe.down → moe.combine`` (a16w4 for packed experts).
    """

    name: ClassVar[str] = "fuse-moe"
    block_rows: int = 64

    def run(self, module: Any) -> None:
        rewrite_module(module, [Pattern(k3.Experts, self._experts)])
        rewrite_module(module, [Pattern(k3.RmsNorm, _norm)])

    def _experts(self, op: Any, rewriter: Any) -> bool:
        count = shape(op.w1)[0] or 0
        local = options_of(op, "first_expert")
        ids = tensor("i32", None)
        with rewriter.ip:
            order = build(
                moe.Sort,
                op,
                [op.ids],
                [ids, ids, tensor("i32", 1)],
                num_experts=count,
                block_rows=self.block_rows,
                **local,
            )
            y = self._products(op, [order.pairs, order.block_expert, order.num_blocks])
            total = build(
                moe.Combine, op, [y, op.ids, None], [op.r.type], num_experts=count, **local
            )
        rewriter.replace_op(op, [total.r])
        return True

    def _products(self, op: Any, order: list[Any]) -> Any:
        kind, form = element(op.x), "plain" if op.format.value == "plain" else "a16w4"
        inner, width = shape(op.w1)[1], shape(op.x)[-1]
        h = build(
            moe.GateUp,
            op,
            [op.x, *order, op.w1, op.w3, None, op.s1, op.s3],
            [tensor(kind, None, inner)],
            format=form,
            activation=op.activation,
            top_k=shape(op.ids)[-1],
            block_rows=self.block_rows,
            **options_of(op, "beta", "linear_beta"),
        ).h
        return build(
            moe.Down,
            op,
            [h, *order, op.weights, op.w2, None, op.s2],
            [tensor(kind, None, width)],
            format=form,
            block_rows=self.block_rows,
        ).y


def _norm(op: Any, rewriter: Any) -> bool:
    total = made_by(op.x, moe.Combine)
    if total is None or total.norm_weight is not None or not has_one_use(op.x):
        return False
    with rewriter.ip:
        fused = build(
            moe.Combine,
            total,
            [total.y, total.ids, op.weight],
            [op.y.type],
            num_experts=total.num_experts,
            eps=op.eps,
            **options_of(total, "first_expert"),
        )
    rewriter.replace_op(op, [fused.r])
    rewriter.erase_op(total)
    return True
