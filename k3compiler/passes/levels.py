"""Which ops belong to which level, and the check that a module is of one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from k3compiler.dialects import k3
from k3compiler.errors import K3Error
from k3compiler.ir import origin_of
from k3compiler.passes.base import Pass
from k3compiler.passes.module import operations

# On both levels: parameters, plain kernels, views.
SHARED = (
    k3.Weight, k3.Embed, k3.Linear, k3.GatedLinear, k3.NormLinear, k3.Columns, k3.RmsNorm, k3.Add, k3.Situ, k3.SiluMul,
    k3.GatherRows, k3.Argmax, k3.Sample, k3.StepMetadata,
)  # fmt: skip
FUSED_DIALECTS = ("kda", "mla", "attn_res", "moe", "mx")


def is_legal(op: Any, level: int) -> bool:
    """Whether an op may stand in a finished module of this level."""
    dialect = op.operation.name.split(".")[0]
    if isinstance(op, SHARED) or dialect in ("func", "comm"):
        return True
    return dialect == "k3" if level == 1 else dialect in FUSED_DIALECTS


@dataclass(frozen=True, slots=True)
class VerifyLevel(Pass):
    """Refuses a module in which ops of another level are left.

    From: 1. To: 2.
    """

    name: ClassVar[str] = "verify-level"
    level: int = 2

    def run(self, module: Any) -> None:
        found = [op for op in operations(module) if not is_legal(op, self.level)]
        if found:
            raise K3Error(
                "K3-P003",
                where=f"verify-level{{level={self.level}}}",
                expected=f"only ops of level {self.level}",
                found=", ".join(sorted({_place(op) for op in found})),
            )


def _place(op: Any) -> str:
    origin = origin_of(op)
    return origin.op if origin.layer is None else f"{origin.op} (layer {origin.layer})"
