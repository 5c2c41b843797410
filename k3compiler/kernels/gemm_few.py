"""Matrix products with stored weights ``[out, in]`` for up to 16 tokens, with the sum over K in parts.

The matrix unit's sum over K is one chain of dependent products. Where weights have few rows there are few programs, so
the chain, not the bytes, is the time. Here every warp of a program has a part of each block of K and a sum of its own.
"""

from __future__ import annotations

from k3compiler.dialects.tile.builder import Program
from k3compiler.dialects.tile.values import Tile, dot, where
from k3compiler.kernels.activation import gated
from k3compiler.kernels.factors import factors_of
from k3compiler.kernels.gemm import GATED, RESIDUALS

LEFT_ROWS = 16  # of the matrix unit's left operand, at least
RIGHT_ROWS = 8


def gemm_few(
    p: Program,
    *,
    N: int,
    K: int,
    in_cols: int,
    in_offset: int = 0,
    K2: int = 0,
    in_cols2: int = 0,
    in_offset2: int = 0,
    tokens: int,
    block_n: int,
    block_k: int,
    parts: int,
    epilogue: str = "none",
    beta: float | None = None,
    linear_beta: float | None = None,
    dtype: str,
    out_dtype: str | None = None,
) -> None:
    """y = x wᵀ with the epilogues of ``gemm``, for T up to ``tokens``; accumulated and added in f32.

    A program reads ``block_n`` rows of w (gated epilogues: half of them gates, half their ups) and all of x. Weights
    are the left operand where they are enough rows for it, else tokens are. The parts are summed in a fixed order.

    Shapes: x ``[T, in_cols]`` of which columns ``in_offset .. in_offset + K`` are read; w ``[N, K]`` (gated epilogues:
    ``[2N, K]``, gate rows first); x2 and w2 likewise; r and r2 ``[T, N]``; y ``[T, N]``.
    """
    out_dtype = out_dtype or dtype
    halves = 2 if epilogue in GATED else 1
    pieces = ((K, in_cols, in_offset), (K2, in_cols2, in_offset2))
    factors = factors_of(p, dtype, halves * N, *pieces)
    residuals = [p.buffer(name, dtype, ("T", N)) for name in RESIDUALS[epilogue]]
    y = p.buffer("y", out_dtype, ("T", N), "w")
    columns = block_n // halves
    T, n = p.symbol("T"), p.program_id(0) * columns
    is_weights_left = block_n >= LEFT_ROWS
    block_t = max(tokens, RIGHT_ROWS if is_weights_left else LEFT_ROWS)

    line = p.arange(block_n)
    rows = None if halves == 1 else line % columns + line // columns * N
    shape = (block_n, block_t) if is_weights_left else (block_t, block_n)
    acc = p.zeros((parts * shape[0], shape[1]))
    for f in factors:
        with p.loop(0, f.K, block_k, carry=[acc]) as (k, (acc,)):
            wk = f.w.load((n, k), (block_n, block_k), rows=rows)
            xk = f.rows(0, k, (block_t, block_k))
            p.yield_(dot(wk, xk.T, acc) if is_weights_left else dot(xk, wk.T, acc))
        (acc,) = p.results()
    total = acc.reshape(parts, block_n * block_t).sum(0).reshape(*shape)
    total = total if is_weights_left else total.T
    if halves == 2:
        gate, up = _halves(p, total)
        total = gated(gate, up, activation=epilogue, beta=beta, linear_beta=linear_beta)
    out = total.T
    for r in residuals:
        out = out + r.load((0, n), (block_t, columns), limits=(T, N)).to("f32")
    y.store((0, n), out.to(out_dtype), limits=(T, N))
    p.grid(f"cdiv({N}, {columns})")


def _halves(p: Program, both: Tile) -> tuple[Tile, Tile]:
    """The upper and the lower half of a tile's rows."""
    rows, columns = both.shape[0] // 2, both.shape[1]
    pair = both.reshape(2, rows * columns)
    half = p.arange(2).expand(1)
    upper, lower = (where(half.eq(i), pair, 0.0).sum(0).reshape(rows, columns) for i in (0, 1))
    return upper, lower
