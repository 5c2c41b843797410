"""KDA's whole decode step in one kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from k3compiler.dialects import k3, kda
from k3compiler.ir import Pattern, rewrite_module
from k3compiler.ir.dialect import shape
from k3compiler.passes.base import Pass
from k3compiler.passes.chunk_kda import token_inputs
from k3compiler.passes.match import build, has_one_use, made_by, options_of, users

MAX_RANK = 256  # a program takes all of a head's rows of the map


def _decode(op: Any, rewriter: Any) -> bool:
    recurrence = made_by(op.o, k3.KdaRecurrence)
    inputs = None if recurrence is None else token_inputs(recurrence)
    if recurrence is None or inputs is None or not has_one_use(recurrence.o):
        return False
    kept = _conv_state(inputs)
    f, f_weight = _low_rank(inputs.f)
    with rewriter.ip:
        fused = build(
            kda.Decode,
            op,
            [
                inputs.qkv, f, inputs.beta, op.gate, inputs.conv_weight, inputs.conv_state,
                inputs.a_log, inputs.dt_bias, op.weight, recurrence.state, recurrence.batch,
                f_weight,
            ],
            [op.y.type, inputs.conv_state.type, recurrence.state.type],
            num_heads=inputs.num_heads,
            q_scale=inputs.q_scale,
            l2_eps=inputs.l2_eps,
            norm_eps=op.eps,
            **options_of(inputs, "lower_bound"),
        )  # fmt: skip
    rewriter.replace_op(op, [fused.y])
    rewriter.replace_op(recurrence, [fused.y, fused.new_state])
    for state in kept:
        rewriter.replace_op(state, [fused.new_conv_state])
    return True


def _low_rank(f: Any) -> tuple[Any, Any | None]:
    """The low-rank rows and the map that make the decay's logits; the logits alone if others read them too."""
    up = made_by(f, k3.Linear)
    if up is None or not has_one_use(f) or up.residual is not None:
        return f, None
    return (up.x, up.weight) if (shape(up.x)[-1] or 0) <= MAX_RANK else (f, None)


def _conv_state(inputs: Any) -> list[Any]:
    """The ops that keep the conv state these inputs read."""
    found = [user for user in users(inputs.conv_state) if isinstance(user, kda.ConvState)]
    return [user for user in found if user.qkv == inputs.qkv]


@dataclass(frozen=True, slots=True)
class FuseKdaDecode(Pass):
    """Inputs, one step of the recurrence, gated norm and both new states; the decay's second map if its rank is low.

    From: 1 (with fuse-kda-inputs run). To: 2. For the decode phase: one token a sequence.

    ``k3.linear → kda.inputs → k3.kda_recurrence → k3.gated_rms_norm`` and ``kda.conv_state`` become ``kda.decode``.
    """

    name: ClassVar[str] = "fuse-kda-decode"

    def run(self, module: Any) -> None:
        rewrite_module(module, [Pattern(k3.GatedRmsNorm, _decode)])
