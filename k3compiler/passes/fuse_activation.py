"""The gated activation into the projection before it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from k3compiler.dialects import k3
from k3compiler.ir import Pattern, rewrite_module
from k3compiler.ir.dialect import shape
from k3compiler.passes.base import Pass
from k3compiler.passes.match import build, has_one_use, made_by, options_of, users


def _activate(op: Any, rewriter: Any) -> bool:
    """Rooted at the activation of two halves of one projection."""
    gate, up = made_by(op.gate, k3.Columns), made_by(op.up, k3.Columns)
    if gate is None or up is None or gate.x != up.x:
        return False
    linear, width = made_by(gate.x, k3.Linear), shape(op.y)[-1]
    if linear is None or linear.epilogue.value != "none" or len(users(linear.y)) != 2:
        return False
    if (gate.offset.value, up.offset.value) != (0, width) or shape(linear.y)[-1] != 2 * (
        width or 0
    ):
        return False
    if not has_one_use(gate.y) or not has_one_use(up.y):
        return False
    with rewriter.ip:
        fused = build(
            k3.GatedLinear,
            linear,
            [linear.x, linear.weight],
            [op.y.type],
            activation="situ" if isinstance(op, k3.Situ) else "silu",
            **options_of(op, "beta", "linear_beta"),
        )
    rewriter.replace_op(op, [fused.y])
    for dead in (gate, up, linear):
        rewriter.erase_op(dead)
    return True


@dataclass(frozen=True, slots=True)
class FuseActivation(Pass):
    """SiTU or SwiGLU as the epilogue of the projection that makes gate and up: one launch and one rounding less.

    From: 2 (with fuse-projections run). To: 2. For the decode phase, whose launches are small.

    ``y = k3.linear(x, [wg; wu]); k3.situ(k3.columns(y), k3.columns(y))`` becomes ``k3.gated_linear(x, [wg; wu])``.
    """

    name: ClassVar[str] = "fuse-activation"
    from_level: ClassVar[int] = 2

    def run(self, module: Any) -> None:
        rewrite_module(module, [Pattern(k3.Situ, _activate), Pattern(k3.SiluMul, _activate)])
