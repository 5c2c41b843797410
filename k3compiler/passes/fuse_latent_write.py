"""The latent norm into the write to the pages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from k3compiler.dialects import k3, mla
from k3compiler.ir import Pattern, rewrite_module
from k3compiler.ir.dialect import shape
from k3compiler.passes.base import Pass
from k3compiler.passes.match import build, made_by


def _write(op: Any, rewriter: Any) -> bool:
    norm, rope = made_by(op.latent, k3.RmsNorm), made_by(op.rope, k3.Columns)
    raw = None if norm is None else made_by(norm.x, k3.Columns)
    if norm is None or rope is None or raw is None or raw.x != rope.x:
        return False
    if raw.offset.value != 0 or rope.offset.value != shape(op.latent)[-1]:
        return False
    with rewriter.ip:
        fused = build(
            mla.LatentWrite,
            op,
            [raw.x, norm.weight, op.cache, op.batch],
            [op.cache.type],
            eps=norm.eps,
        )
    rewriter.replace_op(op, [fused.new_cache])
    return True


@dataclass(frozen=True, slots=True)
class FuseLatentWrite(Pass):
    """kv_a's norm and the cache write in one.

    From: 1. To: 2.

    ``k3.columns, k3.rms_norm → k3.mla_cache_write`` becomes ``mla.latent_write``.
    """

    name: ClassVar[str] = "fuse-latent-write"

    def run(self, module: Any) -> None:
        rewrite_module(module, [Pattern(k3.MlaCacheWrite, _write)])
