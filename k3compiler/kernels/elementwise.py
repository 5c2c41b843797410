"""Sums of activations."""

from __future__ import annotations

from k3compiler.dialects.tile.builder import Program


def add(p: Program, *, cols: int, block: int, dtype: str) -> None:
    """y = a + b, in f32.

    Shapes: a, b, y ``[T, cols]``. Grid: tokens, column blocks. Source: spec 2.4 (plain residuals).
    """
    a = p.buffer("a", dtype, ("T", cols))
    b = p.buffer("b", dtype, ("T", cols))
    y = p.buffer("y", dtype, ("T", cols), "w")
    t, col = p.program_id(0), p.program_id(1) * block
    total = a.load((t, col), (1, block)).to("f32") + b.load((t, col), (1, block)).to("f32")
    y.store((t, col), total.to(dtype))
    p.grid("T", f"cdiv({cols}, {block})")
