"""The norm whose columns are shared out over the ranks, into the product that takes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from k3compiler.dialects import k3
from k3compiler.ir import Pattern, rewrite_module
from k3compiler.ir.dialect import element, optional
from k3compiler.passes.base import Pass
from k3compiler.passes.match import build, has_one_use, made_by


def _join(op: Any, rewriter: Any) -> bool:
    norm = made_by(op.x, k3.RmsNorm)
    part = None if norm is None else optional(norm, "part")
    if norm is None or part is None or not has_one_use(op.x):
        return False
    if element(op.y) != element(norm.x):
        return False
    operands = [norm.x, norm.weight, op.weight, op.residual]
    with rewriter.ip:
        fused = build(k3.NormLinear, op, operands, [op.y.type], eps=norm.eps, part=part)
    rewriter.replace_op(op, [fused.y])
    return True


@dataclass(frozen=True, slots=True)
class FusePartNorm(Pass):
    """latent_up cut over the ranks: a product of few columns, which can wait for the norm of all of them.

    From: 2. To: 2. For the decode phase: with one token they are one launch.

    ``k3.linear(k3.rms_norm(x, g){part}, w, r)`` becomes ``k3.norm_linear(x, g, w, r){part}``.
    """

    name: ClassVar[str] = "fuse-part-norm"
    from_level: ClassVar[int] = 2

    def run(self, module: Any) -> None:
        rewrite_module(module, [Pattern(k3.Linear, _join)])
