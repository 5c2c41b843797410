"""Activations to MXFP8: e4m3 elements, one e8m0 scale for every 32 columns."""

from __future__ import annotations

from k3compiler.config import MX_GROUP
from k3compiler.dialects.tile.builder import Program
from k3compiler.dialects.tile.values import Tile, maximum, where
from k3compiler.dtypes import E4M3_CARRY, E4M3_EMAX, F32_MANTISSA_BITS, SCALE_BIAS, SCALE_NAN


def to_mxfp8(x: Tile, rows: int, cols: int) -> tuple[Tile, Tile]:
    """f32 ``[rows, cols]`` as e4m3 values of that shape and i8 scales ``[rows, cols/32]``."""
    grouped = x.reshape(rows * cols // MX_GROUP, MX_GROUP)
    size = (grouped.bitcast("i32") & 0x7FFFFFFF).max(
        1
    )  # bits of positive floats: ordered as integers, NaN last
    exponent, finite = (
        (size + E4M3_CARRY) >> F32_MANTISSA_BITS,
        size < SCALE_NAN << F32_MANTISSA_BITS,
    )
    scale = where(finite, maximum(exponent - E4M3_EMAX, 0), SCALE_NAN)
    inverse = (
        where(finite, 2 * SCALE_BIAS - scale, SCALE_BIAS) << F32_MANTISSA_BITS
    )  # bits of 2^(127 - scale)
    scaled = grouped * inverse.bitcast("f32").expand(1)
    return scaled.to("e4m3").reshape(rows, cols), scale.to("i8").reshape(rows, cols // MX_GROUP)


def mx_quantize(
    p: Program,
    *,
    cols: int,
    block_rows: int,
    block_cols: int,
    dtype: str,
    in_cols: int,
    in_offset: int,
    rows: str = "T",
) -> None:
    """``scale = ceil(log2(amax / 448))`` per group (biased by 127; 255 for NaN or infinity), values ``x / 2^scale``.

    Works on the f32 bits, so that the scale is exact. ``rows`` is the name of the rows' symbol.

    Shapes: x ``[rows, in_cols]``, of which ``cols`` columns from ``in_offset`` -> values ``[rows, cols]`` e4m3,
    scale ``[rows, cols/32]`` i8. Source: spec 6; k3compiler/dtypes.py quantize_mxfp8.
    """
    x = p.buffer("x", dtype, (rows, in_cols))
    values = p.buffer("values", "e4m3", (rows, cols), "w")
    scales = p.buffer("scale", "i8", (rows, cols // MX_GROUP), "w")
    column, row = p.program_id(0) * block_cols, p.program_id(1) * block_rows
    tile = x.load(
        (row, column + in_offset),
        (block_rows, block_cols),
        limits=(p.symbol(rows), in_offset + cols),
    )
    made, scale = to_mxfp8(tile.to("f32"), block_rows, block_cols)
    values.store((row, column), made)
    scales.store((row, p.program_id(0) * (block_cols // MX_GROUP)), scale)
    p.grid(f"cdiv({cols}, {block_cols})", f"cdiv({rows}, {block_rows})")
