"""The order of passes from level 1 to level 2, for each phase."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from k3compiler.passes.base import Pass
from k3compiler.passes.chunk_kda import ChunkKda
from k3compiler.passes.convert_mla import ConvertMlaAbsorbed, ConvertMlaExpanded
from k3compiler.passes.fuse_activation import FuseActivation
from k3compiler.passes.fuse_attn_res import FuseAttnRes
from k3compiler.passes.fuse_gate import FuseGate
from k3compiler.passes.fuse_kda_decode import FuseKdaDecode
from k3compiler.passes.fuse_kda_inputs import FuseKdaInputs
from k3compiler.passes.fuse_latent_write import FuseLatentWrite
from k3compiler.passes.fuse_moe import FuseMoe
from k3compiler.passes.fuse_part_norm import FusePartNorm
from k3compiler.passes.fuse_projections import FuseProjections
from k3compiler.passes.fuse_query_norm import FuseQueryNorm
from k3compiler.passes.fuse_requantize import FuseRequantize
from k3compiler.passes.fuse_residual import FuseResidual
from k3compiler.passes.fuse_router import FuseRouter
from k3compiler.passes.fuse_sort import FuseSort
from k3compiler.passes.levels import VerifyLevel
from k3compiler.passes.partition import Partition
from k3compiler.passes.quantize_moe import Activations, QuantizeMoe

Phase = Literal["prefill", "decode"]
Pipeline = tuple[Pass, ...]

# Partition comes first: every later pass sees a rank's shapes. fuse-attn-res takes the adds of the running
# sum before fuse-residual takes the rest. fuse-projections is late: until then every projection can be told
# by its own weight; what comes after it reads its columns.
PREFILL: Pipeline = (
    Partition(),
    FuseRouter(),
    FuseAttnRes(),
    FuseKdaInputs(),
    ChunkKda(),
    FuseLatentWrite(),
    ConvertMlaExpanded(),
    FuseGate(),
    FuseResidual(),
    FuseMoe(block_rows=64),
    QuantizeMoe(),
    FuseRequantize(),
    FuseProjections(),
    FuseQueryNorm(),
    VerifyLevel(),
)

DECODE: Pipeline = (
    Partition(),
    FuseRouter(),
    FuseAttnRes(),
    FuseKdaInputs(),
    FuseKdaDecode(),
    FuseLatentWrite(),
    ConvertMlaAbsorbed(),
    FuseGate(),
    FuseResidual(),
    FuseMoe(block_rows=16),
    FuseSort(),
    QuantizeMoe(),
    FuseRequantize(),
    FuseProjections(),
    FuseQueryNorm(),
    FusePartNorm(),
    FuseActivation(),
    VerifyLevel(),
)

PIPELINES: dict[Phase, Pipeline] = {"prefill": PREFILL, "decode": DECODE}


@dataclass(frozen=True, slots=True)
class LoweringOptions:
    """What a build chooses about levels 1 to 2; ``ep`` None is ``tp``, ``block_rows`` None the phase's own.

    ``activations``: how MXFP8 ones are held, ``mx`` (elements and scales) or ``wide`` (in the activations' type).
    """

    tp: int = 1
    ep: int | None = None
    shard: str = ""
    moe: Literal["a16w4", "a8w4"] = "a16w4"
    activations: Activations = "mx"
    chunk_tokens: int = 64
    split_tokens: int = 64
    block_rows: int | None = None


def pipeline(phase: Phase, options: LoweringOptions | None = None) -> Pipeline:
    """The passes of a phase with a build's choices filled in."""
    o = options or LoweringOptions()
    chosen: dict[type[Pass], dict[str, Any]] = {
        Partition: {"tp": o.tp, "ep": o.ep, "shard": o.shard},
        QuantizeMoe: {"format": o.moe, "activations": o.activations},
        ChunkKda: {"chunk_tokens": o.chunk_tokens},
        ConvertMlaAbsorbed: {"split_tokens": o.split_tokens},
        FuseMoe: {} if o.block_rows is None else {"block_rows": o.block_rows},
    }
    return tuple(replace(step, **chosen.get(type(step), {})) for step in PIPELINES[phase])
