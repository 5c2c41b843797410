"""The value product of MLA decode with the merge of the context's parts in it, for few tokens."""

from __future__ import annotations

from k3compiler.dialects.tile.builder import Program
from k3compiler.dialects.tile.values import dot, exp2, maximum, sigmoid
from k3compiler.kernels.mla_decode import LEAST, span_of


def mla_merge_up(
    p: Program,
    *,
    heads: int,
    N: int,
    kv_lora: int,
    w_rows: int,
    w_offset: int,
    split_tokens: int,
    epilogue: str = "none",
    g_cols: int = 0,
    g_offset: int = 0,
    block_n: int,
    block_k: int,
    block_s: int,
    dtype: str,
) -> None:
    """y[s, h] = Σ_i 2^(m_i - M) (acc_i w_hᵀ) / Σ_i 2^(m_i - M) l_i over the parts that hold tokens.

    The parts are the rows of the product, ``block_s`` at a time, and are merged behind it: they are copied to shared
    memory beside the weights, and the next of both meanwhile. The division into parts is :func:`mla_decode`'s.

    Shapes: acc ``[S, NSPLIT, heads, kv_lora]``, m and l ``[S, NSPLIT, heads]``, f32 (acc is rounded to the weights'
    format); seq_ctx ``[S]``; w ``[heads, w_rows, kv_lora]``, of which the N rows from ``w_offset`` on are w_h;
    y ``[S, heads, N]``; epilogue ``gate`` and g as head_gemm's.
    Grid: weight blocks, heads, sequences. Source: spec 4.3.
    """
    partial = p.buffer("acc", "f32", ("S", "NSPLIT", heads, kv_lora))
    tops = p.buffer("m", "f32", ("S", "NSPLIT", heads))
    sums = p.buffer("l", "f32", ("S", "NSPLIT", heads))
    seq_ctx = p.buffer("seq_ctx", "i32", ("S",))
    w = p.buffer("w", dtype, (heads, w_rows, kv_lora))
    g = p.buffer("g", dtype, ("S", g_cols)) if epilogue == "gate" else None
    y = p.buffer("y", dtype, ("S", heads, N), "w")
    n, h, s = p.program_id(0) * block_n, p.program_id(1), p.program_id(2)

    _, count = span_of(p, seq_ctx.load((s,)), split_tokens)
    start = [p.constant(LEAST, "f32"), p.constant(0, "f32"), p.zeros((block_n,))]
    with p.loop(0, count, block_s, carry=start) as (i, (m, l, out)):
        m_i = tops.load((s, i, h), (block_s,), dims=(1,), limits=(count,), other=LEAST)
        l_i = sums.load((s, i, h), (block_s,), dims=(1,), limits=(count,))
        with p.loop(0, kv_lora, block_k, carry=[p.zeros((block_s, block_n))]) as (k, (rows,)):
            part = partial.load(
                (s, i, h, k), (block_s, block_k), dims=(1, 3), limits=(count, kv_lora)
            )
            wk = w.load((h, n + w_offset, k), (block_n, block_k), limits=(w_offset + N, kv_lora))
            p.yield_(dot(part.to(dtype), wk.T, rows))
        (rows,) = p.results()
        m_new = maximum(m, m_i.max(0))
        fade, share = exp2(m - m_new), exp2(m_i - m_new)
        p.yield_(
            m_new, l * fade + (l_i * share).sum(0), out * fade + (rows * share.expand(1)).sum(0)
        )
    _, l, out = p.results()
    out = out / l
    if g is not None:
        at = h * N + n + g_offset
        gate = g.load((s, at), (block_n,), limits=((h + 1) * N + g_offset,))
        out = out * sigmoid(gate.to("f32"))
    y.store((s, h, n), out.to(dtype))
    p.grid(f"cdiv({N}, {block_n})", heads, "S")
