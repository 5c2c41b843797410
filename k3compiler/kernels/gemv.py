"""Matrix products with stored weights ``[out, in]`` for a token or a few, without the matrix unit.

A matrix unit's sum over K is one chain of dependent products. For very few tokens the chain, not the bytes, is
the time; here a program has a few rows of weights, asks for all of them at once, and every thread sums its own columns.
"""

from __future__ import annotations

from k3compiler.dialects.tile.builder import Program
from k3compiler.dialects.tile.values import Tile
from k3compiler.kernels.activation import gated
from k3compiler.kernels.factors import factors_of
from k3compiler.kernels.gemm import GATED, RESIDUALS


def gemv(
    p: Program,
    *,
    N: int,
    K: int,
    in_cols: int,
    in_offset: int = 0,
    K2: int = 0,
    in_cols2: int = 0,
    in_offset2: int = 0,
    block_n: int,
    block_k: int,
    tokens: int,
    epilogue: str = "none",
    beta: float | None = None,
    linear_beta: float | None = None,
    dtype: str,
    out_dtype: str | None = None,
) -> None:
    """y = x wᵀ with the epilogues of ``gemm``, for T up to ``tokens``; products and sums in f32.

    A program makes ``block_n`` columns of y for all tokens, ``block_k`` columns of the weights at a time.

    Shapes: x ``[T, in_cols]`` of which columns ``in_offset .. in_offset + K`` are read; w ``[N, K]`` (gated epilogues:
    ``[2N, K]``, gate rows first); x2 and w2 likewise; r and r2 ``[T, N]``; y ``[T, N]``.
    """
    out_dtype = out_dtype or dtype
    halves = 2 if epilogue in GATED else 1
    read = ((K, in_cols, in_offset), (K2, in_cols2, in_offset2))
    factors = factors_of(p, dtype, halves * N, *read)
    residuals = [p.buffer(name, dtype, ("T", N)) for name in RESIDUALS[epilogue]]
    y = p.buffer("y", out_dtype, ("T", N), "w")
    T, n = p.symbol("T"), p.program_id(0) * block_n

    pieces = [(f, at) for f in factors for at in f.starts(block_k)]
    parts = [
        [f.w.load((n + h * N, at), (block_n, block_k)) for f, at in pieces] for h in range(halves)
    ]
    for token in range(tokens):
        columns = [f.rows(token, at, (1, block_k)).to("f32") for f, at in pieces]
        sums = [row_sums(part, columns) for part in parts]
        out = sums[0]
        if halves == 2:
            out = gated(*sums, activation=epilogue, beta=beta, linear_beta=linear_beta)
        for r in residuals:
            out = out + r.load((token, n), (1, block_n), limits=(T, N)).to("f32")
        y.store((token, n), out.to(out_dtype), limits=(T, N))
    p.grid(f"cdiv({N}, {block_n})")


def row_sums(weights: list[Tile], columns: list[Tile]) -> Tile:
    """``[1, block_n]``: the products of each row of weights with x, summed over all pieces of K."""
    total = weights[0].to("f32") * columns[0]
    for part, piece in zip(weights[1:], columns[1:], strict=True):
        total = total + part.to("f32") * piece
    return total.sum(1).expand(0)
