"""RMSNorm and a product of some of its columns, for a token or a few: the sum of squares beside the product."""

from __future__ import annotations

from k3compiler.dialects.tile.builder import Program
from k3compiler.dialects.tile.values import rsqrt
from k3compiler.kernels.factors import factors_of
from k3compiler.kernels.gemv import row_sums


def norm_gemv(
    p: Program,
    *,
    N: int,
    K: int,
    cols: int,
    in_cols: int,
    in_offset: int,
    K2: int = 0,
    in_cols2: int = 0,
    in_offset2: int = 0,
    block: int,
    block_n: int,
    block_k: int,
    tokens: int,
    eps: float,
    epilogue: str = "none",
    dtype: str,
) -> None:
    """y = rsqrt(mean(x²) + eps) (x ⊙ g) wᵀ, + r with epilogue ``add``, + x2 w2ᵀ with ``product``; in f32.

    For T up to ``tokens``. The mean is of all ``cols`` columns, the product of K of them: those from ``part * K`` on.
    Every program reads the row, which is short beside its weights; of these it has ``block_k`` columns at a time.

    Shapes: x ``[T, in_cols]``, from column ``in_offset`` on; g ``[cols]``; w ``[N, K]``; x2 and w2 as in ``gemv``; r
    and y ``[T, N]``; scalar ``part``. ``block`` holds ``cols``. Grid: ``block_n`` rows of w. Source: notation page.
    """
    read = ((K, in_cols, in_offset), (K2, in_cols2, in_offset2))
    mine, *others = factors = factors_of(p, dtype, N, *read)
    g = p.weight("g", dtype, (cols,))
    r = p.buffer("r", dtype, ("T", N)) if epilogue == "add" else None
    y = p.buffer("y", dtype, ("T", N), "w")
    T, first, n = p.symbol("T"), p.scalar("part") * K, p.program_id(0) * block_n

    weights = [[f.w.load((n, at), (block_n, block_k)) for at in f.starts(block_k)] for f in factors]
    gains = [
        g.load((first + at,), (block_k,), limits=(first + K,)).to("f32").expand(0)
        for at in mine.starts(block_k)
    ]
    shape, end = (1, block_k), first + (in_offset + K)
    for token in range(tokens):
        row = mine.x.load((token, in_offset), (1, block), limits=(T, in_offset + cols)).to("f32")
        parts = [
            mine.x.load((token, first + (in_offset + at)), shape, limits=(T, end)).to("f32")
            for at in mine.starts(block_k)
        ]
        columns = [[part * gain for part, gain in zip(parts, gains, strict=True)]]
        for f in others:
            columns.append([f.rows(token, at, shape).to("f32") for at in f.starts(block_k)])
        added = None if r is None else r.load((token, n), (1, block_n), limits=(T, N)).to("f32")
        out, *terms = (row_sums(w, x) for w, x in zip(weights, columns, strict=True))
        out = out * rsqrt((row * row).sum(1) / float(cols) + eps).expand(1)
        for term in terms if added is None else [added]:
            out = out + term
        y.store((token, n), out.to(dtype), limits=(T, N))
    p.grid(f"cdiv({N}, {block_n})")
