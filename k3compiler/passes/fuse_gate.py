"""The output gate into the kernel before it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from k3compiler.dialects import k3, mla
from k3compiler.ir import Pattern, rewrite_module
from k3compiler.passes.base import Pass
from k3compiler.passes.match import build, has_one_use, made_by


def _gate(op: Any, rewriter: Any) -> bool:
    """Rooted at the gate: there its logits are at hand."""
    if not has_one_use(op.x):
        return False
    prefill, value_up = made_by(op.x, mla.Prefill), made_by(op.x, mla.ValueUp)
    source = prefill or value_up
    if source is None or source.gate is not None:
        return False
    names = ["num_heads", "v_dim"]
    names += ["nope_dim", "rope_dim", "scale"] if prefill is not None else []
    numbers = {name: getattr(source, name) for name in names}
    with rewriter.ip:
        operands = [*source.operation.operands, op.gate]
        fused = build(type(source), source, operands, [op.y.type], **numbers)
    rewriter.replace_op(op, [fused.o])
    rewriter.erase_op(source)
    return True


@dataclass(frozen=True, slots=True)
class FuseGate(Pass):
    """MLA's sigmoid gate as the epilogue of the attention (or of the value projection).

    From: 2. To: 2.

    ``mla.prefill → k3.mul_sigmoid`` becomes ``mla.prefill`` with a gate; ``mla.value_up`` likewise.
    """

    name: ClassVar[str] = "fuse-gate"

    def run(self, module: Any) -> None:
        rewrite_module(module, [Pattern(k3.MulSigmoid, _gate)])
