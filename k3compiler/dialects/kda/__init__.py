"""The kda dialect: Kimi Delta Attention, one op a kernel (level 2)."""

from k3compiler.dialects.kda.ops import (
    ConvState,
    Decode,
    Inputs,
    Kda,
    Output,
    Prepare,
    Scan,
    SegmentMaps,
)

__all__ = ["ConvState", "Decode", "Inputs", "Kda", "Output", "Prepare", "Scan", "SegmentMaps"]
