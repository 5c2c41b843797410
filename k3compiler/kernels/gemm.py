"""Matrix products with stored weights ``[out, in]``, for many tokens or few, and per head."""

from __future__ import annotations

from k3compiler.dialects.tile.builder import Buffer, Program
from k3compiler.dialects.tile.values import Tile, dot, minimum, sigmoid
from k3compiler.kernels.activation import gated
from k3compiler.kernels.factors import factors_of

RESIDUALS = {"none": (), "add": ("r",), "add2": ("r", "r2"), "product": (), "situ": (), "silu": ()}
GATED = ("situ", "silu")


def _block_of(p: Program, row_blocks: Tile, col_blocks: Tile, group: int) -> tuple[Tile, Tile]:
    """(row block, column block) of this program: column blocks are swept for ``group`` row blocks at
    a time, so that the operands of neighbouring programs stay in the cache."""
    pid = p.program_id(0)
    sweep = col_blocks * group
    first = pid // sweep * group
    size = minimum(row_blocks - first, group)
    return first + pid % sweep % size, pid % sweep // size


def _cdiv(a: Tile, b: int) -> Tile:
    return (a + (b - 1)) // b


def gemm(
    p: Program,
    *,
    N: int,
    K: int,
    in_cols: int,
    in_offset: int = 0,
    K2: int = 0,
    in_cols2: int = 0,
    in_offset2: int = 0,
    out_cols: int | None = None,
    out_offset: int = 0,
    block_m: int,
    block_n: int,
    block_k: int,
    group: int = 8,
    swap: bool = False,
    epilogue: str = "none",
    beta: float | None = None,
    linear_beta: float | None = None,
    dtype: str,
    out_dtype: str | None = None,
) -> None:
    """y = x wᵀ, + r with epilogue ``add``, + r + r2 with ``add2``, + x2 w2ᵀ with ``product``; accumulated in f32.

    Epilogues ``situ`` and ``silu``: w is ``[2N, K]``, gate rows first, and y = act(x wgᵀ, x wuᵀ) (spec 5.3).

    Shapes: x ``[T, in_cols]`` of which columns ``in_offset .. in_offset + K`` are read; w ``[N, K]``; x2 and w2
    likewise; r and r2 ``[T, N]``; y ``[T, out_cols]`` (default N), written from column ``out_offset`` on.
    ``swap`` is the skinny form: rows of the tile (``block_m``) are weights, columns (``block_n``) tokens.
    ``out_dtype`` defaults to ``dtype``.
    """
    out_cols, out_dtype = out_cols or N, out_dtype or dtype
    halves = 2 if epilogue in GATED else 1
    columns = ((K, in_cols, in_offset), (K2, in_cols2, in_offset2))
    factors = factors_of(p, dtype, halves * N, *columns)
    residuals = [p.buffer(name, dtype, ("T", N)) for name in RESIDUALS[epilogue]]
    y = p.buffer("y", out_dtype, ("T", out_cols), "w")
    T = p.symbol("T")
    tall, wide = ("N", "T") if swap else ("T", "N")
    size = {"T": T, "N": p.scalar_value(N)}
    i, j = _block_of(p, _cdiv(size[tall], block_m), _cdiv(size[wide], block_n), group)
    i, j = i * block_m, j * block_n
    t, n = (j, i) if swap else (i, j)
    rows_x, rows_w = (block_n, block_m) if swap else (block_m, block_n)

    firsts = [n + i * N for i in range(halves)]
    totals = (p.zeros((block_m, block_n)),) * halves
    for f in factors:
        with p.loop(0, f.K, block_k, carry=totals) as (k, sums):
            xk = f.rows(t, k, (rows_x, block_k))
            weights = [f.w.load((first, k), (rows_w, block_k)) for first in firsts]
            pairs = zip(weights, sums, strict=True)
            p.yield_(*(dot(wk, xk.T, a) if swap else dot(xk, wk.T, a) for wk, a in pairs))
        totals = p.results()
    out, *up = (acc.T if swap else acc for acc in totals)
    if up:
        out = gated(out, up[0], activation=epilogue, beta=beta, linear_beta=linear_beta)
    for r in residuals:
        out = out + r.load((t, n), (rows_x, rows_w)).to("f32")
    y.store((t, n + out_offset), out.to(out_dtype), limits=(T, out_offset + N))
    sizes = {"T": "T", "N": str(N)}
    p.grid(f"cdiv({sizes[tall]}, {block_m}) * cdiv({sizes[wide]}, {block_n})")


def head_gemm(
    p: Program,
    *,
    heads: int,
    N: int,
    K: int,
    x_cols: int,
    x_offset: int = 0,
    w_rows: int,
    w_cols: int,
    w_offset: int = 0,
    transposed: bool = False,
    epilogue: str = "none",
    g_cols: int = 0,
    g_offset: int = 0,
    block_m: int,
    block_n: int,
    block_k: int,
    dtype: str,
) -> None:
    """y[t, h] = x[t, h] w_hᵀ, one weight a head, for few tokens: rows of the tile are weights.

    Shapes: x ``[T, heads, x_cols]`` of which columns ``x_offset .. x_offset + K`` are read;
    w ``[heads, w_rows, w_cols]`` of which ``[N, K]`` at row ``w_offset`` is w_h, or ``[K, N]`` where
    ``transposed``; y ``[T, heads, N]``. Epilogue ``gate`` multiplies by sigmoid(g), g ``[T, g_cols]``,
    head h at column ``g_offset + h N``.
    Grid: weight blocks (``block_m``), token blocks (``block_n``), heads.
    Source: spec 4.3 (q W_uk is transposed, o W_uvᵀ is gated).
    """
    x = p.buffer("x", dtype, ("T", heads, x_cols))
    w = p.buffer("w", dtype, (heads, w_rows, w_cols))
    g = p.buffer("g", dtype, ("T", g_cols)) if epilogue == "gate" else None
    y = p.buffer("y", dtype, ("T", heads, N), "w")
    T = p.symbol("T")
    n, t, h = p.program_id(0) * block_m, p.program_id(1) * block_n, p.program_id(2)

    with p.loop(0, K, block_k, carry=[p.zeros((block_m, block_n))]) as (k, (acc,)):
        xk = x.load((t, h, k + x_offset), (block_n, block_k), dims=(0, 2), limits=(T, x_offset + K))
        if transposed:
            at, limits = (h, k + w_offset, n), (w_offset + K, N)
            wk = w.load(at, (block_k, block_m), limits=limits).T
        else:
            at, limits = (h, n + w_offset, k), (w_offset + N, K)
            wk = w.load(at, (block_m, block_k), limits=limits)
        p.yield_(dot(wk, xk.T, acc))
    (acc,) = p.results()
    out = acc.T
    if g is not None:
        out = out * _gate(
            g, (t, h * N + n + g_offset), (block_n, block_m), (T, (h + 1) * N + g_offset)
        )
    y.store((t, h, n), out.to(dtype), dims=(0, 2))
    p.grid(f"cdiv({N}, {block_m})", f"cdiv(T, {block_n})", heads)


def _gate(
    g: Buffer, at: tuple[Tile, Tile], shape: tuple[int, int], limits: tuple[Tile, Tile]
) -> Tile:
    return sigmoid(g.load(at, shape, limits=limits).to("f32"))
