"""A residual add into the linear map before it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from k3compiler.dialects import k3
from k3compiler.ir import Pattern, rewrite_module
from k3compiler.passes.base import Pass
from k3compiler.passes.match import build, has_one_use, made_by


def _add(op: Any, rewriter: Any) -> bool:
    """Rooted at the add, where both summands are at hand."""
    for summand, other in ((op.a, op.b), (op.b, op.a)):
        linear = made_by(summand, k3.Linear)
        if linear is None or linear.epilogue.value != "none" or not has_one_use(summand):
            continue
        with rewriter.ip:
            operands = [linear.x, linear.weight, other]
            fused = build(k3.Linear, linear, operands, [op.y.type], epilogue="add")
        rewriter.replace_op(op, [fused.y])
        rewriter.erase_op(linear)
        return True
    return False


@dataclass(frozen=True, slots=True)
class FuseResidual(Pass):
    """Adds that no norm has taken (the shared experts' output, say) as an epilogue.

    From: 1. To: 2. After fuse-attn-res, which wants the adds of the running sum.

    ``k3.add(k3.linear(x, w), r)`` becomes ``k3.linear(x, w, r){epilogue = "add"}``.
    """

    name: ClassVar[str] = "fuse-residual"

    def run(self, module: Any) -> None:
        rewrite_module(module, [Pattern(k3.Add, _add)])
