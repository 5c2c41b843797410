"""Conv, SiLU, norms and gates of KDA into one kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from k3compiler.dialects import k3, kda
from k3compiler.ir import Pattern, rewrite_module
from k3compiler.ir.dialect import element, shape, tensor
from k3compiler.passes.base import Pass
from k3compiler.passes.match import build, made_by, options_of


class _Branches(NamedTuple):
    """The ops between the projections and the recurrence."""

    conv: Any
    q: Any
    k: Any
    gate: Any
    beta: Any


def _branches(op: Any) -> _Branches | None:
    q, k = made_by(op.q, k3.L2Norm), made_by(op.k, k3.L2Norm)
    gate, beta = made_by(op.g, k3.KdaGate), made_by(op.beta, k3.Sigmoid)
    if q is None or k is None or gate is None or beta is None:
        return None
    width = shape(op.k)[-1] or 0
    offsets = (0, width, 2 * width)
    convs = [_conv_behind(v, at) for v, at in zip((q.x, k.x, op.v), offsets, strict=True)]
    first = convs[0]
    if first is None or any(c is None or c.operation != first.operation for c in convs):
        return None
    if q.eps.value != k.eps.value or k.scale.value != 1.0:
        return None
    return _Branches(first, q, k, gate, beta)


def _conv_behind(value: Any, offset: int) -> Any | None:
    """The convolution whose SiLU a value is a column range of."""
    columns = made_by(value, k3.Columns)
    if columns is None or columns.offset.value != offset:
        return None
    silu = made_by(columns.x, k3.Silu)
    return None if silu is None else made_by(silu.x, k3.ShortConv)


def _inputs(op: Any, rewriter: Any) -> bool:
    found = _branches(op)
    if found is None:
        return False
    conv, gate = found.conv, found.gate
    kind, heads = element(op.q), shape(gate.a_log)[0]
    with rewriter.ip:
        fused = build(
            kda.Inputs,
            op,
            [
                conv.u, gate.f, found.beta.x, conv.weight, conv.state,
                gate.a_log, gate.dt_bias, op.batch,
            ],
            [op.q.type, op.k.type, tensor(kind, *shape(op.v)), op.g.type, op.beta.type],
            num_heads=heads,
            chunk_tokens=1,
            q_scale=found.q.scale,
            l2_eps=found.q.eps,
            **options_of(gate, "lower_bound"),
        )  # fmt: skip
        kept = build(kda.ConvState, op, [conv.u, conv.state, op.batch], [conv.state.type])
        values = [fused.q, fused.k, fused.v, fused.g, fused.beta_out]
        step = build(
            k3.KdaRecurrence, op, [*values, op.state, op.batch], [op.o.type, op.state.type]
        )
    rewriter.replace_op(op, [step.o, step.new_state])
    conv.new_state.replace_all_uses_with(kept.new_state)
    return True


@dataclass(frozen=True, slots=True)
class FuseKdaInputs(Pass):
    """Everything between KDA's projections and its recurrence.

    From: 1. To: 2.

    ``short_conv → silu → columns → l2_norm``, ``kda_gate`` and ``sigmoid`` become ``kda.inputs`` (with
    chunk_tokens 1: gates not yet cumulative); the conv's new state becomes ``kda.conv_state``.
    """

    name: ClassVar[str] = "fuse-kda-inputs"

    def run(self, module: Any) -> None:
        rewrite_module(module, [Pattern(k3.KdaRecurrence, _inputs)])
