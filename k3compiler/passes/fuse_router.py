"""Sigmoid and top-k of the router in one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from k3compiler.dialects import k3, moe
from k3compiler.ir import Pattern, rewrite_module
from k3compiler.passes.base import Pass
from k3compiler.passes.match import build, made_by


def _route(op: Any, rewriter: Any) -> bool:
    scores = made_by(op.scores, k3.Sigmoid)
    if scores is None:
        return False
    with rewriter.ip:
        fused = build(
            moe.RouteTopk,
            op,
            [scores.x, op.bias],
            [op.weights.type, op.ids.type],
            top_k=op.top_k,
            renormalize=op.renormalize,
            scale=op.scale,
        )
    rewriter.replace_op(op, [fused.weights, fused.ids])
    return True


@dataclass(frozen=True, slots=True)
class FuseRouter(Pass):
    """The router's sigmoid into the selection.

    From: 1. To: 2.

    ``k3.sigmoid(logits) → k3.route(scores, bias)`` becomes ``moe.route_topk(logits, bias)``.
    """

    name: ClassVar[str] = "fuse-router"

    def run(self, module: Any) -> None:
        rewrite_module(module, [Pattern(k3.Route, _route)])
