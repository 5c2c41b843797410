"""The router's choice and the sort of it as one op."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from k3compiler.dialects import moe
from k3compiler.ir import Pattern, rewrite_module
from k3compiler.passes.base import Pass
from k3compiler.passes.match import build, is_before, options_of, users


def _sort(op: Any, rewriter: Any) -> bool:
    """Rooted at the router, where the fused op goes: the sort needs nothing else."""
    sort = next((user for user in users(op.ids) if isinstance(user, moe.Sort)), None)
    if sort is None:
        return False
    assert is_before(op, sort)
    with rewriter.ip:
        fused = build(
            moe.Route,
            op,
            [op.logits, op.bias],
            [r.type for r in (*op.operation.results, *sort.operation.results)],
            top_k=op.top_k,
            renormalize=op.renormalize,
            scale=op.scale,
            num_experts=sort.num_experts,
            block_rows=sort.block_rows,
            **options_of(sort, "first_expert"),
        )
    rewriter.replace_op(sort, [fused.pairs, fused.block_expert, fused.num_blocks])
    rewriter.replace_op(op, [fused.weights, fused.ids])
    return True


@dataclass(frozen=True, slots=True)
class FuseSort(Pass):
    """Router and sort together, for the decode phase: of one token they are one launch, of a few two.

    From: 2. To: 2. ``moe.route_topk → moe.sort`` becomes ``moe.route``.
    """

    name: ClassVar[str] = "fuse-sort"
    from_level: ClassVar[int] = 2

    def run(self, module: Any) -> None:
        rewrite_module(module, [Pattern(moe.RouteTopk, _sort)])
