"""Residual add, AttnRes mix and the norm behind it in one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from k3compiler.dialects import attn_res, k3
from k3compiler.ir import Pattern, rewrite_module
from k3compiler.passes.base import Pass
from k3compiler.passes.match import build, has_one_use, is_before, made_by, users


def _mix_and_norm(op: Any, rewriter: Any) -> bool:
    """Rooted at the norm, which is where the fused op goes."""
    mix = made_by(op.x, k3.AttnResMix)
    if mix is not None and not has_one_use(mix.y):
        return False
    running = op.x if mix is None else list(mix.candidates)[-1]
    add = _residual_add(running, mix or op, op)
    if mix is None and add is None:
        return False
    snapshots = [] if mix is None else list(mix.candidates)[:-1]
    kind = running.type
    with rewriter.ip:
        fused = build(
            attn_res.MixNorm,
            op,
            [
                running if add is None else add.a,
                op.weight,
                snapshots,
                None if mix is None else mix.query,
                None if mix is None else mix.norm,
                None if add is None else add.b,
            ],
            [kind, kind],
            eps=None if mix is None else mix.eps,
            out_eps=op.eps,
        )
    rewriter.replace_op(op, [fused.normed])
    if mix is not None:
        rewriter.erase_op(mix)
    if add is not None:
        rewriter.replace_op(add, [fused.new_sum])
    return True


def _residual_add(running: Any, first_user: Any, norm: Any) -> Any | None:
    """The add that makes the running sum, if nobody needs it before the fused op."""
    add = made_by(running, k3.Add)
    if add is None:
        return None
    others = [user for user in users(add.y) if user.operation != first_user.operation]
    return add if all(is_before(norm, user) for user in others) else None


@dataclass(frozen=True, slots=True)
class FuseAttnRes(Pass):
    """Accumulate, score, softmax, mix and RMSNorm in one kernel; plain residuals likewise, without the mix.

    From: 1. To: 2.

    ``P' = k3.add(P, f); k3.rms_norm(k3.attn_res_mix(B, P'))`` becomes
    ``P', y = attn_res.mix_norm(P, f, B)``.
    """

    name: ClassVar[str] = "fuse-attn-res"

    def run(self, module: Any) -> None:
        rewrite_module(module, [Pattern(k3.RmsNorm, _mix_and_norm)])
