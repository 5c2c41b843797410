"""RMSNorm and a product of some of its columns, for a token or a few: the sum of squares beside the product."""

from __future__ import annotations

from k3compiler.dialects.tile.builder import Program
from k3compiler.dialects.tile.values import rsqrt


def norm_gemv(
    p: Program,
    *,
    N: int,
    K: int,
    cols: int,
    in_cols: int,
    in_offset: int,
    block: int,
    block_n: int,
    block_k: int,
    tokens: int,
    eps: float,
    epilogue: str = "none",
    dtype: str,
) -> None:
    """y = rsqrt(mean(x²) + eps) (x ⊙ g) wᵀ, + r with epilogue ``add``, for T up to ``tokens``; in f32.

    The mean is of all ``cols`` columns, the product of K of them: those from ``part * K`` on. Every program reads the
    row, which is short beside its weights.

    Shapes: x ``[T, in_cols]``, from column ``in_offset`` on; g ``[cols]``; w ``[N, K]``; r and y ``[T, N]``; scalar
    ``part``. ``block`` and ``block_k`` hold ``cols`` and K. Grid: ``block_n`` rows of w. Source: spec, notation page.
    """
    x = p.buffer("x", dtype, ("T", in_cols))
    g = p.weight("g", dtype, (cols,))
    w = p.weight("w", dtype, (N, K))
    r = p.buffer("r", dtype, ("T", N)) if epilogue == "add" else None
    y = p.buffer("y", dtype, ("T", N), "w")
    T, first, n = p.symbol("T"), p.scalar("part") * K, p.program_id(0) * block_n

    start, end = first + in_offset, first + (in_offset + K)
    rows = [
        (
            x.load((token, start), (1, block_k), limits=(T, end)).to("f32"),
            x.load((token, in_offset), (1, block), limits=(T, in_offset + cols)).to("f32"),
        )
        for token in range(tokens)
    ]
    gains = g.load((first,), (block_k,), limits=(first + K,)).to("f32").expand(0)
    added = [
        r.load((token, n), (1, block_n), limits=(T, N)) for token in range(tokens) if r is not None
    ]
    weights = w.load((n, 0), (block_n, block_k)).to("f32")  # last: on their way with all of these
    for token, (mine, row) in enumerate(rows):
        out = (weights * (mine * gains)).sum(1).expand(0)
        out = out * rsqrt((row * row).sum(1) / float(cols) + eps).expand(1)
        if added:
            out = out + added[token].to("f32")
        y.store((token, n), out.to(dtype), limits=(T, N))
    p.grid(f"cdiv({N}, {block_n})")
