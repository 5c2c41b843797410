"""MLA's two forms: keys and values expanded (prefill), or absorbed into the query (decode)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from k3compiler.dialects import k3, mla
from k3compiler.ir import Pattern, rewrite_module
from k3compiler.ir.dialect import element, shape, tensor
from k3compiler.passes.base import Pass
from k3compiler.passes.match import build


def _expanded(op: Any, rewriter: Any) -> bool:
    kind, (rows, rank) = element(op.q), shape(op.kv_b)
    with rewriter.ip:
        latent = build(
            mla.Gather, op, [op.cache, op.batch], [tensor(kind, None, shape(op.cache)[-1])]
        ).latent
        compressed = build(k3.Columns, op, [latent], [tensor(kind, None, rank)], offset=0).y
        kv = build(
            k3.Linear, op, [compressed, op.kv_b, None], [tensor(kind, None, rows)], epilogue="none"
        ).y
        fused = build(
            mla.Prefill,
            op,
            [op.q, kv, latent, op.batch, None],
            [op.o.type],
            num_heads=op.num_heads,
            nope_dim=op.nope_dim,
            rope_dim=op.rope_dim,
            v_dim=op.v_dim,
            scale=op.scale,
        )
    rewriter.replace_op(op, [fused.o])
    return True


@dataclass(frozen=True, slots=True)
class ConvertMlaExpanded(Pass):
    """Attention over expanded keys and values, for the prefill phase.

    From: 1. To: 2.

    ``k3.mla_attention`` becomes ``mla.gather → k3.linear(kv_b) → mla.prefill``.
    """

    name: ClassVar[str] = "convert-mla-expanded"

    def run(self, module: Any) -> None:
        rewrite_module(module, [Pattern(k3.MlaAttention, _expanded)])


@dataclass(frozen=True, slots=True)
class ConvertMlaAbsorbed(Pass):
    """Attention among latents, split over the context, for the decode phase (one token a sequence).

    From: 1. To: 2.

    ``k3.mla_attention`` becomes ``mla.absorb_q → mla.decode → mla.merge → mla.value_up``.
    """

    name: ClassVar[str] = "convert-mla-absorbed"
    split_tokens: int = 64

    def run(self, module: Any) -> None:
        rewrite_module(module, [Pattern(k3.MlaAttention, self._absorbed)])

    def _absorbed(self, op: Any, rewriter: Any) -> bool:
        heads, rank = op.num_heads.value, shape(op.kv_b)[-1] or 0
        latent = tensor(element(op.q), None, heads * rank)
        with rewriter.ip:
            q_latent = build(
                mla.AbsorbQ,
                op,
                [op.q, op.kv_b],
                [latent],
                num_heads=heads,
                nope_dim=op.nope_dim,
                rope_dim=op.rope_dim,
            ).q_latent
            o_latent = self._split_attention(op, q_latent, latent)
            fused = build(
                mla.ValueUp,
                op,
                [o_latent, op.kv_b, None],
                [op.o.type],
                num_heads=heads,
                v_dim=op.v_dim,
            )
        rewriter.replace_op(op, [fused.o])
        return True

    def _split_attention(self, op: Any, q_latent: Any, latent: Any) -> Any:
        heads, rank = op.num_heads.value, shape(op.kv_b)[-1] or 0
        numbers = tensor("f32", None, None, heads)
        parts = build(
            mla.Decode,
            op,
            [q_latent, op.q, op.cache, op.batch],
            [tensor("f32", None, None, heads, rank), numbers, numbers],
            num_heads=heads,
            rope_dim=op.rope_dim,
            split_tokens=self.split_tokens,
            scale=op.scale,
        )
        operands = [parts.acc, parts.top, parts.total, op.batch]
        return build(mla.Merge, op, operands, [latent], split_tokens=self.split_tokens).o_latent
