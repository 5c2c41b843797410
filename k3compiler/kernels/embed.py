"""Rows of the embedding table."""

from __future__ import annotations

from k3compiler.dialects.tile.builder import Program


def embed(p: Program, *, rows: int, cols: int, block: int, dtype: str) -> None:
    """y[t] = table[tokens[t] - vocab_first], or 0 where the id lies in another rank's slice.

    Shapes: tokens ``[T]`` i32; table ``[rows, cols]``, this rank's slice of the vocabulary; y ``[T, cols]``.
    Scalar ``vocab_first``: the id of the slice's first row. Grid: tokens, column blocks. Source: spec 7.1.
    """
    tokens = p.buffer("tokens", "i32", ("T",))
    table = p.buffer("table", dtype, (rows, cols))
    y = p.buffer("y", dtype, ("T", cols), "w")
    first = p.scalar("vocab_first")
    t, col = p.program_id(0), p.program_id(1) * block
    row = tokens.load((t,)) - first
    y.store((t, col), table.load((row, col), (1, block)))
    p.grid("T", f"cdiv({cols}, {block})")
