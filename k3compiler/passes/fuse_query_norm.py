"""The query's norm beside the latent's: a token's two norms of low rank as one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from k3compiler.dialects import k3, mla
from k3compiler.ir import Pattern, rewrite_module
from k3compiler.ir.dialect import optional
from k3compiler.passes.base import Pass
from k3compiler.passes.match import build, is_available, made_by, users


def _join(op: Any, rewriter: Any) -> bool:
    """Rooted at the query's norm, where the fused op goes: the write's reader comes later anyway."""
    view = made_by(op.x, k3.Columns)
    write = None if view is None else _write_beside(view)
    if write is None or write.eps != op.eps or optional(op, "part") is not None:
        return False
    weight = made_by(write.norm_weight, k3.Weight)
    given = [write.kv_a, write.cache, write.batch, *([] if weight else [write.norm_weight])]
    if not all(is_available(value, op) for value in given):
        return False
    if weight is not None:  # a parameter may stand anywhere
        weight.operation.move_before(op.operation)
    operands = [op.x, op.weight, *write.operation.operands]
    with rewriter.ip:
        fused = build(mla.NormWrite, write, operands, [op.y.type, write.cache.type], eps=op.eps)
    rewriter.replace_op(write, [fused.new_cache])
    rewriter.replace_op(op, [fused.q])
    return True


def _write_beside(view: Any) -> Any | None:
    """The latent write that reads other columns of the same rows."""
    views = [user for user in users(view.x) if isinstance(user, k3.Columns)]
    readers = [user for other in views for user in users(other.y)]
    return next((user for user in readers if isinstance(user, mla.LatentWrite)), None)


@dataclass(frozen=True, slots=True)
class FuseQueryNorm(Pass):
    """q_a's norm and the latent write in one launch: they read neighbouring columns of a row.

    From: 2 (with fuse-projections run). To: 2.

    ``k3.rms_norm(k3.columns(y)), mla.latent_write(k3.columns(y))`` becomes ``mla.norm_write``.
    """

    name: ClassVar[str] = "fuse-query-norm"
    from_level: ClassVar[int] = 2

    def run(self, module: Any) -> None:
        rewrite_module(module, [Pattern(k3.RmsNorm, _join)])
