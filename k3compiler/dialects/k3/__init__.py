"""The k3 dialect: the model op by op (level 1), and the plain ops that stay to level 2."""

from k3compiler.dialects.k3.dialect import K3, Batch
from k3compiler.dialects.k3.experts import Experts, Route
from k3compiler.dialects.k3.gated_linear import GatedLinear
from k3compiler.dialects.k3.mixers import (
    KdaGate,
    KdaRecurrence,
    MlaAttention,
    MlaCacheWrite,
    ShortConv,
)
from k3compiler.dialects.k3.norm_linear import NormLinear
from k3compiler.dialects.k3.params import (
    Argmax,
    Columns,
    Concat,
    Embed,
    GatherRows,
    Linear,
    Sample,
    StepMetadata,
    Weight,
)
from k3compiler.dialects.k3.pointwise import (
    Add,
    AttnResMix,
    GatedRmsNorm,
    L2Norm,
    MulSigmoid,
    RmsNorm,
    Sigmoid,
    Silu,
    SiluMul,
    Situ,
)

__all__ = [
    "K3",
    "Add",
    "Argmax",
    "AttnResMix",
    "Batch",
    "Columns",
    "Concat",
    "Embed",
    "Experts",
    "GatedLinear",
    "GatedRmsNorm",
    "GatherRows",
    "KdaGate",
    "KdaRecurrence",
    "L2Norm",
    "Linear",
    "MlaAttention",
    "MlaCacheWrite",
    "MulSigmoid",
    "NormLinear",
    "RmsNorm",
    "Route",
    "Sample",
    "ShortConv",
    "Sigmoid",
    "Silu",
    "SiluMul",
    "Situ",
    "StepMetadata",
    "Weight",
]
