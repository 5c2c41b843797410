"""Gated MLA for one token a sequence, absorbed: attention among the paged latents, split over the context."""

from __future__ import annotations

from math import e, log2

from k3compiler.dialects.tile.builder import Program
from k3compiler.dialects.tile.values import dot, exp2, maximum, minimum, where
from k3compiler.kernels.mla_latent import padded


def mla_decode(
    p: Program,
    *,
    heads: int,
    nope: int,
    rope: int,
    kv_lora: int,
    page_tokens: int,
    block_kv: int,
    block_h: int,
    split_tokens: int,
    dtype: str,
) -> None:
    """One span of the context: acc = Σ_j 2^(s_j - m) c_j, l = Σ_j 2^(s_j - m), m = max_j s_j, where
    s_j = (q_lat c_j + q_rope kp_j) (nope + rope)^-0.5 log2(e).

    Sequence s has ``seq_ctx[s] + 1`` rows (the token's own is written before); split i covers positions
    ``i split_tokens ..``. An empty split writes m = -inf and l = 0, and no acc.
    Shapes: q_lat ``[S, heads, kv_lora]``; q ``[S, heads, nope + rope]``, of which the rope channels are
    read; seq_ctx ``[S]``; page_table ``[S, P]``; mla_cache ``[PAGES, PAGE_ROWS, kv_lora + rope]``; acc
    ``[S, NSPLIT, heads, kv_lora]``, m and l ``[S, NSPLIT, heads]``, f32. Tiles are transposed: latents are
    rows, heads columns. ``block_kv`` divides ``page_tokens`` and ``split_tokens``.
    Grid: splits, sequences, head blocks. Source: spec 4.3.
    """
    assert page_tokens % block_kv == 0 and split_tokens % block_kv == 0
    q_lat = p.buffer("q_lat", dtype, ("S", heads, kv_lora))
    q = p.buffer("q", dtype, ("S", heads, nope + rope))
    seq_ctx = p.buffer("seq_ctx", "i32", ("S",))
    page_table = p.buffer("page_table", "i32", ("S", "P"))
    cache = p.buffer("mla_cache", dtype, ("PAGES", "PAGE_ROWS", kv_lora + rope))
    acc_out = p.buffer("acc", "f32", ("S", "NSPLIT", heads, kv_lora), "w")
    m_out = p.buffer("m", "f32", ("S", "NSPLIT", heads), "w")
    l_out = p.buffer("l", "f32", ("S", "NSPLIT", heads), "w")
    split, s, h = p.program_id(0), p.program_id(1), p.program_id(2) * block_h
    start = split * split_tokens
    stop = minimum(start + split_tokens, seq_ctx.load((s,)) + 1)
    rank, scale = padded(kv_lora), (nope + rope) ** -0.5 * log2(e)
    query = q_lat.load((s, h, 0), (block_h, rank)).T
    query_rope = q.load((s, h, nope), (block_h, padded(rope))).T

    m = p.full((block_h,), float("-inf"))
    l, acc = p.zeros((block_h,)), p.zeros((rank, block_h))
    with p.loop(start, stop, block_kv, carry=[m, l, acc]) as (j, (m, l, acc)):
        page, row = page_table.load((s, j // page_tokens)), j % page_tokens
        end = row + stop - j
        c = cache.load((page, row, 0), (block_kv, rank), limits=(end, kv_lora))
        kp = cache.load(
            (page, row, kv_lora), (block_kv, padded(rope)), limits=(end, kv_lora + rope)
        )
        scores = dot(kp, query_rope, dot(c, query)) * scale
        scores = where((p.arange(block_kv) + j).expand(1) < stop, scores, float("-inf"))
        m_new = maximum(m, scores.max(0))
        fade = exp2(m - m_new)
        weight = exp2(scores - m_new.expand(0))
        acc = dot(c.T, weight.to(dtype), acc * fade.expand(0))
        p.yield_(m_new, l * fade + weight.sum(0), acc)
    m, l, acc = p.results()
    m_out.store((s, split, h), m)
    l_out.store((s, split, h), l)
    with p.when(start < stop):
        acc_out.store((s, split, h, 0), acc.T)
    p.grid("NSPLIT", "S", f"cdiv({heads}, {block_h})")


def mla_merge(p: Program, *, heads: int, kv_lora: int, split_tokens: int, dtype: str) -> None:
    """o_lat = Σ_i 2^(m_i - M) acc_i / Σ_i 2^(m_i - M) l_i over the splits that hold context.

    Shapes: acc ``[S, NSPLIT, heads, kv_lora]``, m and l ``[S, NSPLIT, heads]`` f32; seq_ctx ``[S]``; o_lat
    ``[S, heads, kv_lora]``. Grid: sequences, heads. Source: spec 4.3.
    """
    partial = p.buffer("acc", "f32", ("S", "NSPLIT", heads, kv_lora))
    tops = p.buffer("m", "f32", ("S", "NSPLIT", heads))
    sums = p.buffer("l", "f32", ("S", "NSPLIT", heads))
    seq_ctx = p.buffer("seq_ctx", "i32", ("S",))
    o_lat = p.buffer("o_lat", dtype, ("S", heads, kv_lora), "w")
    s, h = p.program_id(0), p.program_id(1)
    count = seq_ctx.load((s,)) // split_tokens + 1

    start = [p.constant(float("-inf"), "f32"), p.constant(0.0, "f32"), p.zeros((padded(kv_lora),))]
    with p.loop(0, count, carry=start) as (i, (m, l, acc)):
        m_i, l_i = tops.load((s, i, h)), sums.load((s, i, h))
        m_new = maximum(m, m_i)
        old, new = exp2(m - m_new), exp2(m_i - m_new)
        acc = acc * old + partial.load((s, i, h, 0), (padded(kv_lora),)) * new
        p.yield_(m_new, l * old + l_i * new, acc)
    _, l, acc = p.results()
    o_lat.store((s, h, 0), (acc / l).to(dtype))
    p.grid("S", heads)
