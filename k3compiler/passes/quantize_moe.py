"""The experts' activation format."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from k3compiler.dialects import moe, mx
from k3compiler.ir import Pattern, rewrite_module
from k3compiler.ir.dialect import optional, shape, tensor
from k3compiler.passes.base import Pass
from k3compiler.passes.match import build, made_by, options_of

Activations = Literal["mx", "wide"]


def _quantized(op: Any) -> list[Any]:
    """x as MXFP8 values and scales."""
    width = shape(op.x)[-1] or 0
    kinds = [tensor("f8E4M3FN", None, width), tensor("i8", None, width // mx.GROUP)]
    found = build(mx.Quantize, op, [op.x], kinds)
    return [found.values, found.scale]


def _gate_up(op: Any, rewriter: Any) -> bool:
    if op.format.value != "a16w4":
        return False
    with rewriter.ip:
        values, scale = _quantized(op)
        fused = build(
            moe.GateUp,
            op,
            [
                values, op.pairs, op.block_expert, op.num_blocks, op.w1, op.w3,
                scale, op.s1, op.s3,
            ],
            [op.h.type],
            format="a8w4",
            activation=op.activation,
            top_k=op.top_k,
            block_rows=op.block_rows,
            **options_of(op, "beta", "linear_beta"),
        )  # fmt: skip
    rewriter.replace_op(op, [fused.h])
    return True


def _down(op: Any, rewriter: Any) -> bool:
    if op.format.value != "a16w4":
        return False
    with rewriter.ip:
        values, scale = _quantized(op)
        fused = build(
            moe.Down,
            op,
            [
                values, op.pairs, op.block_expert, op.num_blocks, op.weights, op.w2, scale, op.s2,
            ],
            [op.y.type],
            format="a8w4",
            block_rows=op.block_rows,
        )  # fmt: skip
    rewriter.replace_op(op, [fused.y])
    return True


def _round(op: Any, rewriter: Any) -> bool:
    """x becomes what MXFP8 makes of it, and stays in its type."""
    if op.format.value != "a16w4" or _is_rounded(op.x):
        return False
    with rewriter.ip:
        op.operation.operands[0] = build(mx.Round, op, [op.x], [op.x.type]).y
    return True


def _is_rounded(x: Any) -> bool:
    product = made_by(x, moe.GateUp)
    return made_by(x, mx.Round) is not None or (
        product is not None and bool(optional(product, "rounds"))
    )


@dataclass(frozen=True, slots=True)
class QuantizeMoe(Pass):
    """Chooses what the MXFP4 experts multiply: activations as they are (a16w4), or MXFP8 (a8w4).

    From: 2. To: 2. Plain experts stay as they are. For a matrix unit without MXFP8, ``wide`` activations are those
    numbers in the model's own type, and the products are those of a16w4.

    ``moe.gate_up{a16w4}`` becomes ``mx.quantize → moe.gate_up{a8w4}`` (wide: ``mx.round → moe.gate_up{a16w4}``);
    ``moe.down`` likewise.
    """

    name: ClassVar[str] = "quantize-moe"
    from_level: ClassVar[int] = 2
    format: Literal["a16w4", "a8w4"] = "a16w4"
    activations: Activations = "mx"

    def run(self, module: Any) -> None:
        if self.format == "a16w4":
            return
        gate_up, down = (_gate_up, _down) if self.activations == "mx" else (_round, _round)
        rewrite_module(module, [Pattern(moe.GateUp, gate_up), Pattern(moe.Down, down)])
