"""MXFP8 activations of the second product, made by the first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from k3compiler.config import MX_GROUP
from k3compiler.dialects import moe, mx
from k3compiler.ir import Pattern, rewrite_module
from k3compiler.ir.dialect import attribute, shape
from k3compiler.passes.base import Pass
from k3compiler.passes.match import build, has_one_use, made_by, options_of


def _requantize(op: Any, rewriter: Any) -> bool:
    """Rooted at the quantisation."""
    first = made_by(op.x, moe.GateUp)
    if first is None or first.format.value != "a8w4" or not has_one_use(op.x):
        return False
    if (shape(first.w1)[1] or 0) % MX_GROUP:
        return False
    with rewriter.ip:
        fused = build(
            moe.GateUpMx,
            first,
            list(first.operation.operands),
            [op.values.type, op.scale.type],
            format="a8w4",
            activation=first.activation,
            top_k=first.top_k,
            block_rows=first.block_rows,
            **options_of(first, "beta", "linear_beta"),
        )
    rewriter.replace_op(op, [fused.h, fused.h_scale])
    rewriter.erase_op(first)
    return True


def _round(op: Any, rewriter: Any) -> bool:
    first = made_by(op.x, moe.GateUp)
    if first is None or first.format.value != "a16w4" or not has_one_use(op.x):
        return False
    first.operation.attributes["rounds"] = attribute(True)
    rewriter.replace_op(op, [first.h])
    return True


@dataclass(frozen=True, slots=True)
class FuseRequantize(Pass):
    """The conversion of h to MXFP8 in the epilogue of the product that makes h.

    From: 2. To: 2.

    ``moe.gate_up{a8w4} → mx.quantize`` becomes ``moe.gate_up_mx``: one launch and two passes over h less;
    ``moe.gate_up{a16w4} → mx.round`` becomes ``moe.gate_up{a16w4, rounds}``.
    """

    name: ClassVar[str] = "fuse-requantize"
    from_level: ClassVar[int] = 2

    def run(self, module: Any) -> None:
        rewrite_module(module, [Pattern(mx.Quantize, _requantize), Pattern(mx.Round, _round)])
