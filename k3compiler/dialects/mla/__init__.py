"""The mla dialect: gated NoPE MLA, one op a kernel (level 2)."""

from k3compiler.dialects.mla.norm_write import NormWrite
from k3compiler.dialects.mla.ops import (
    AbsorbQ,
    Decode,
    Gather,
    LatentWrite,
    Merge,
    Mla,
    Prefill,
    ValueUp,
)

__all__ = [
    "AbsorbQ",
    "Decode",
    "Gather",
    "LatentWrite",
    "Merge",
    "Mla",
    "NormWrite",
    "Prefill",
    "ValueUp",
]
