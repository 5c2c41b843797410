"""Activations to MXFP8: e4m3 elements, one e8m0 scale for every 32 columns."""

from __future__ import annotations

from k3compiler.config import MX_GROUP
from k3compiler.dialects.tile.builder import Program
from k3compiler.dialects.tile.values import maximum, where
from k3compiler.dtypes import E4M3_EMAX, SCALE_BIAS, SCALE_NAN

MANTISSA_BITS = 23


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
    """``scale = floor(log2 amax) - 8`` per group (biased by 127; 255 for NaN or infinity), values ``x / 2^scale``.

    Works on the f32 bits, so that the scale is exact. ``rows`` is the name of the rows' symbol.

    Shapes: x ``[rows, in_cols]``, of which ``cols`` columns from ``in_offset`` -> values ``[rows, cols]`` e4m3,
    scale ``[rows, cols/32]`` i8. Source: spec 6; k3compiler/dtypes.py quantize_mxfp8.
    """
    x = p.buffer("x", dtype, (rows, in_cols))
    values = p.buffer("values", "e4m3", (rows, cols), "w")
    scales = p.buffer("scale", "i8", (rows, cols // MX_GROUP), "w")
    column, row = p.program_id(0) * block_cols, p.program_id(1) * block_rows
    num_groups = block_cols // MX_GROUP
    tile = x.load(
        (row, column + in_offset),
        (block_rows, block_cols),
        limits=(p.symbol(rows), in_offset + cols),
    )
    grouped = tile.to("f32").reshape(block_rows * num_groups, MX_GROUP)
    size_bits = (
        grouped.bitcast("i32") & 0x7FFFFFFF
    )  # of positive floats: ordered as integers, NaN last
    exponent = size_bits.max(1) >> MANTISSA_BITS
    finite = exponent < SCALE_NAN
    scale = where(finite, maximum(exponent - E4M3_EMAX, 0), SCALE_NAN)
    inverse = (
        where(finite, 2 * SCALE_BIAS - scale, SCALE_BIAS) << MANTISSA_BITS
    )  # bits of 2^(127 - scale)
    scaled = grouped * inverse.bitcast("f32").expand(1)
    values.store((row, column), scaled.to("e4m3").reshape(block_rows, block_cols))
    scales.store(
        (row, p.program_id(0) * num_groups), scale.to("i8").reshape(block_rows, num_groups)
    )
    p.grid(f"cdiv({cols}, {block_cols})", f"cdiv({rows}, {block_rows})")
