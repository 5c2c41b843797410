"""RMSNorm over the last axis."""

from __future__ import annotations

from k3compiler.dialects.tile.builder import Program
from k3compiler.dialects.tile.values import rsqrt


def rms_norm(
    p: Program, *, cols: int, block: int, eps: float, dtype: str, in_cols: int, in_offset: int
) -> None:
    """y = x * rsqrt(mean(x^2) + eps) * w, statistics in f32; one row a program.

    Shapes: x ``[T, in_cols]`` of which columns ``in_offset .. in_offset + cols`` are read; w ``[cols]``;
    y ``[T, cols]``. Source: spec, notation page.
    """
    x = p.buffer("x", dtype, ("T", in_cols))
    w = p.buffer("w", dtype, (cols,))
    y = p.buffer("y", dtype, ("T", cols), "w")
    row = p.program_id(0)
    v = x.load((row, in_offset), (1, block), limits=(row + 1, in_offset + cols)).to("f32")
    scale = rsqrt((v * v).sum(1) / float(cols) + eps)
    weight = w.load((0,), (block,)).to("f32").expand(0)
    y.store((row, 0), (v * scale.expand(1) * weight).to(dtype))
    p.grid("T")
