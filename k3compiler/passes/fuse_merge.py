"""The merge of the parts and the value product as one op."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from k3compiler.dialects import mla
from k3compiler.ir import Pattern, rewrite_module
from k3compiler.passes.base import Pass
from k3compiler.passes.match import build, has_one_use, made_by


def _merge(op: Any, rewriter: Any) -> bool:
    merge = made_by(op.o_latent, mla.Merge)
    if merge is None or not has_one_use(op.o_latent):
        return False
    operands = [merge.acc, merge.top, merge.total, op.kv_b, merge.batch, op.gate]
    numbers = {"num_heads": op.num_heads, "v_dim": op.v_dim, "split_tokens": merge.split_tokens}
    with rewriter.ip:
        fused = build(mla.MergeUp, op, operands, [op.o.type], **numbers)
    rewriter.replace_op(op, [fused.o])
    return True


@dataclass(frozen=True, slots=True)
class FuseMerge(Pass):
    """The merge of the context's parts and the value product: for few tokens they are one launch.

    From: 2. To: 2. After fuse-gate, which looks for the product.

    ``mla.merge → mla.value_up`` becomes ``mla.merge_up``.
    """

    name: ClassVar[str] = "fuse-merge"
    from_level: ClassVar[int] = 2

    def run(self, module: Any) -> None:
        rewrite_module(module, [Pattern(mla.ValueUp, _merge)])
