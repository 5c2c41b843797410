"""Pieces that the KDA kernels share: gate, norms, and the buffers of the fused projections."""

from __future__ import annotations

from k3compiler.config import L2_NORM_EPS
from k3compiler.dialects.tile.builder import Buffer, Program
from k3compiler.dialects.tile.values import (
    Tile,
    absolute,
    exp,
    log,
    maximum,
    rsqrt,
    sigmoid,
    where,
)

CHUNK_TOKENS = 64


def softplus_exact(x: Tile) -> Tile:
    """``log(1 + e^x)`` with full relative accuracy for very negative x (gates near 1)."""
    e = exp(-absolute(x))
    one_more = 1.0 + e
    kept = one_more - 1.0  # what of e survived the rounding
    small = where(kept.eq(0.0), e, log(one_more) * e / where(kept.eq(0.0), 1.0, kept))
    return maximum(x, 0.0) + small


def log_decay(f: Tile, bias: Tile, rate: Tile, lower_bound: float | None) -> Tile:
    """g < 0 from the gate logits: bounded, or softplus where ``lower_bound`` is None (spec 3.3)."""
    z = f + bias
    if lower_bound is None:
        return -(softplus_exact(z) * rate)
    return sigmoid(z * rate) * lower_bound


def unit_rows(x: Tile) -> Tile:
    """L2 normalisation of every row ``[M, D]``; eps is added to the sum of squares (spec 3.3)."""
    return x * rsqrt((x * x).sum(1) + L2_NORM_EPS).expand(1)


def output_gate(
    p: Program, x: Buffer, *, heads: int, v_dim: int, dtype: str, gate_offset: int | None
) -> tuple[Buffer, int, int]:
    """Where the output gate's logits are: ``(buffer, first column, end column)``.

    With ``gate_offset`` None they have a buffer of their own, ``gate [T, heads*v_dim]``.
    """
    if gate_offset is not None:
        return x, gate_offset, gate_offset + heads * v_dim
    return p.buffer("gate", dtype, ("T", heads * v_dim)), 0, heads * v_dim
