"""Activations to MXFP8: e4m3 elements, one e8m0 scale for every 32 columns; or those numbers in their own type."""

from __future__ import annotations

from k3compiler.config import MX_GROUP
from k3compiler.dialects.tile.builder import Program
from k3compiler.dialects.tile.values import Tile, maximum, where
from k3compiler.dtypes import E4M3_CARRY, E4M3_EMAX, F32_MANTISSA_BITS, SCALE_BIAS, SCALE_NAN


def to_mxfp8(x: Tile, rows: int, cols: int) -> tuple[Tile, Tile]:
    """f32 ``[rows, cols]`` as e4m3 values of that shape and i8 scales ``[rows, cols/32]``."""
    values, scale = _groups(x, rows * cols)
    return values.reshape(rows, cols), scale.to("i8").reshape(rows, cols // MX_GROUP)


def rounded_to_mxfp8(x: Tile, rows: int, cols: int) -> Tile:
    """What :func:`to_mxfp8` makes of f32 ``[rows, cols]``, as f32."""
    values, scale = _groups(x, rows * cols)
    return (values.to("f32") * power(scale).expand(1)).reshape(rows, cols)


def power(scale: Tile) -> Tile:
    """2^(scale - 127) of i32; 255 is NaN."""
    least = where(scale.eq(0), scale.program.constant(1 << 22, "i32"), scale << F32_MANTISSA_BITS)
    return where(scale.eq(SCALE_NAN), float("nan"), least.bitcast("f32"))


def _groups(x: Tile, size: int) -> tuple[Tile, Tile]:
    """e4m3 ``[size/32, 32]`` and i32 ``[size/32]``."""
    grouped = x.reshape(size // MX_GROUP, MX_GROUP)
    bits = (grouped.bitcast("i32") & 0x7FFFFFFF).max(
        1
    )  # of positive floats: ordered as integers, NaN last
    exponent, finite = (
        (bits + E4M3_CARRY) >> F32_MANTISSA_BITS,
        bits < SCALE_NAN << F32_MANTISSA_BITS,
    )
    scale = where(finite, maximum(exponent - E4M3_EMAX, 0), SCALE_NAN)
    unit = (
        where(finite, 2 * SCALE_BIAS - scale, SCALE_BIAS) << F32_MANTISSA_BITS
    )  # bits of 2^(127 - scale)
    return (grouped * unit.bitcast("f32").expand(1)).to("e4m3"), scale


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


def mx_round(
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
    """The numbers that :func:`mx_quantize` makes, in x's own type; a group with NaN or infinity is NaN.

    Shapes: x ``[rows, in_cols]``, of which ``cols`` columns from ``in_offset`` -> y ``[rows, cols]``. Source: spec 6.
    """
    x = p.buffer("x", dtype, (rows, in_cols))
    y = p.buffer("y", dtype, (rows, cols), "w")
    column, row = p.program_id(0) * block_cols, p.program_id(1) * block_rows
    limits = (p.symbol(rows), in_offset + cols)
    tile = x.load((row, column + in_offset), (block_rows, block_cols), limits=limits)
    y.store((row, column), rounded_to_mxfp8(tile.to("f32"), block_rows, block_cols).to(dtype))
    p.grid(f"cdiv({cols}, {block_cols})", f"cdiv({rows}, {block_rows})")
