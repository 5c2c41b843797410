"""RMSNorm over the last axis."""

from __future__ import annotations

from k3compiler.dialects.tile.builder import Program
from k3compiler.dialects.tile.values import rsqrt


def rms_norm(
    p: Program,
    *,
    cols: int,
    block: int,
    eps: float,
    dtype: str,
    in_cols: int,
    in_offset: int,
    part_cols: int | None = None,
) -> None:
    """y = x * rsqrt(mean(x^2) + eps) * w, statistics in f32; one row a program.

    Shapes: x ``[T, in_cols]`` of which columns ``in_offset .. in_offset + cols`` are read; w ``[cols]``;
    y ``[T, cols]``, or with ``part_cols`` ``[T, part_cols]``: the columns ``part * part_cols ..`` of the result
    (scalar ``part``). Source: spec, notation page.
    """
    if part_cols is not None:
        _norm_part(p, cols, block, eps, dtype, in_cols, in_offset, part_cols)
        return
    x = p.buffer("x", dtype, ("T", in_cols))
    w = p.buffer("w", dtype, (cols,))
    y = p.buffer("y", dtype, ("T", cols), "w")
    row = p.program_id(0)
    v = x.load((row, in_offset), (1, block), limits=(row + 1, in_offset + cols)).to("f32")
    scale = rsqrt((v * v).sum(1) / float(cols) + eps)
    weight = w.load((0,), (block,)).to("f32").expand(0)
    y.store((row, 0), (v * scale.expand(1) * weight).to(dtype))
    p.grid("T")


def _norm_part(
    p: Program,
    cols: int,
    block: int,
    eps: float,
    dtype: str,
    in_cols: int,
    in_offset: int,
    part_cols: int,
) -> None:
    """The statistics need the whole row, the result some of its columns, which are read again."""
    x = p.buffer("x", dtype, ("T", in_cols))
    w = p.buffer("w", dtype, (cols,))
    y = p.buffer("y", dtype, ("T", part_cols), "w")
    row, first = p.program_id(0), p.scalar("part") * part_cols
    part_block = 1 << (part_cols - 1).bit_length()
    v = x.load((row, in_offset), (1, block), limits=(row + 1, in_offset + cols)).to("f32")
    scale = rsqrt((v * v).sum(1) / float(cols) + eps)
    mine = x.load((row, first + in_offset), (1, part_block), limits=(row + 1, in_offset + cols))
    weight = w.load((first,), (part_block,)).to("f32").expand(0)
    y.store((row, 0), (mine.to("f32") * scale.expand(1) * weight).to(dtype))
    p.grid("T")
