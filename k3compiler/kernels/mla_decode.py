"""Gated MLA for one token a sequence, absorbed: attention among the paged latents, split over the context."""

from __future__ import annotations

from math import e, log2

from k3compiler.dialects.tile.builder import Program
from k3compiler.dialects.tile.values import Tile, dot, exp2, maximum, minimum, where
from k3compiler.kernels.mla_latent import padded

LEAST = -1e30  # below any score; unlike -inf, its difference from itself is 0


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
    """One part of the context: acc = Σ_j 2^(s_j - m) c_j, l = Σ_j 2^(s_j - m), m = max_j s_j, where
    s_j = (q_lat c_j + q_rope kp_j) (nope + rope)^-0.5 log2(e).

    Sequence s has ``seq_ctx[s] + 1`` rows (the token's own is written before), shared out by :func:`_span`. An
    empty part writes m = -inf and l = 0, and no acc.
    Shapes: q_lat ``[S, heads, kv_lora]``; q ``[S, heads, nope + rope]``, of which the rope channels are
    read; seq_ctx ``[S]``; page_table ``[S, P]``; mla_cache ``[PAGES, PAGE_ROWS, kv_lora + rope]``; acc
    ``[S, NSPLIT, heads, kv_lora]``, m and l ``[S, NSPLIT, heads]``, f32. ``block_kv`` divides ``page_tokens`` and
    ``split_tokens``. Grid: parts, sequences, head blocks. Source: spec 4.3.
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
    context = seq_ctx.load((s,))
    span, _ = _span(p, context, split_tokens)
    start = split * span
    stop = minimum(start + span, context + 1)
    rank, scale = padded(kv_lora), (nope + rope) ** -0.5 * log2(e)
    query = q_lat.load((s, h, 0), (block_h, rank))
    query_rope = q.load((s, h, nope), (block_h, padded(rope)))

    m = p.full((block_h,), float("-inf"))
    l, acc = p.zeros((block_h,)), p.zeros((block_h, rank))
    with p.loop(start, stop, block_kv, carry=[m, l, acc]) as (j, (m, l, acc)):
        page, row = page_table.load((s, j // page_tokens)), j % page_tokens
        end = row + stop - j
        c = cache.load((page, row, 0), (block_kv, rank), limits=(end, kv_lora))
        kp = cache.load(
            (page, row, kv_lora), (block_kv, padded(rope)), limits=(end, kv_lora + rope)
        )
        scores = dot(query_rope, kp.T, dot(query, c.T)) * scale
        scores = where((p.arange(block_kv) + j).expand(0) < stop, scores, float("-inf"))
        m_new = maximum(m, scores.max(1))
        fade = exp2(m - m_new)
        weight = exp2(scores - m_new.expand(1))
        acc = dot(weight.to(dtype), c, acc * fade.expand(1))
        p.yield_(m_new, l * fade + weight.sum(1), acc)
    m, l, acc = p.results()
    m_out.store((s, split, h), m)
    l_out.store((s, split, h), l)
    with p.when(start < stop):
        acc_out.store((s, split, h, 0), acc)
    p.grid("NSPLIT", "S", f"cdiv({heads}, {block_h})")


def _span(p: Program, context: Tile, split_tokens: int) -> tuple[Tile, Tile]:
    """Tokens of a part, and how many parts hold any: NSPLIT parts cover the context in whole ``split_tokens``.

    It depends on the sequence's own context and on NSPLIT alone, never on other sequences.
    """
    parts, units = p.symbol("NSPLIT"), context // split_tokens + 1
    span = ((units + parts - 1) // parts) * split_tokens
    return span, context // span + 1


def mla_merge(
    p: Program,
    *,
    heads: int,
    kv_lora: int,
    split_tokens: int,
    block_s: int,
    block_c: int,
    dtype: str,
) -> None:
    """o_lat = Σ_i 2^(m_i - M) acc_i / Σ_i 2^(m_i - M) l_i over the parts that hold context.

    ``block_s`` parts at a time, each with a maximum of its own until the end; the division into parts is
    :func:`mla_decode`'s. Shapes: acc ``[S, NSPLIT, heads, kv_lora]``, m and l ``[S, NSPLIT, heads]`` f32; seq_ctx
    ``[S]``; o_lat ``[S, heads, kv_lora]``. Grid: column blocks, heads, sequences. Source: spec 4.3.
    """
    partial = p.buffer("acc", "f32", ("S", "NSPLIT", heads, kv_lora))
    tops = p.buffer("m", "f32", ("S", "NSPLIT", heads))
    sums = p.buffer("l", "f32", ("S", "NSPLIT", heads))
    seq_ctx = p.buffer("seq_ctx", "i32", ("S",))
    o_lat = p.buffer("o_lat", dtype, ("S", heads, kv_lora), "w")
    column, h, s = p.program_id(0) * block_c, p.program_id(1), p.program_id(2)
    _, count = _span(p, seq_ctx.load((s,)), split_tokens)

    start = [
        p.full((block_s,), LEAST),
        p.zeros((block_s,)),
        p.zeros((block_s, block_c)),
    ]
    with p.loop(0, count, block_s, carry=start) as (i, (m, l, acc)):
        m_i = tops.load((s, i, h), (block_s,), dims=(1,), limits=(count,), other=LEAST)
        l_i = sums.load((s, i, h), (block_s,), dims=(1,), limits=(count,))
        part = partial.load(
            (s, i, h, column), (block_s, block_c), dims=(1, 3), limits=(count, kv_lora)
        )
        m_new = maximum(m, m_i)
        old, new = exp2(m - m_new), exp2(m_i - m_new)
        p.yield_(m_new, l * old + l_i * new, acc * old.expand(1) + part * new.expand(1))
    m, l, acc = p.results()
    weight = exp2(m - m.max(0))
    total = (acc * weight.expand(1)).sum(0) / (l * weight).sum(0)
    o_lat.store((s, h, column), total.to(dtype))
    p.grid(f"cdiv({kv_lora}, {block_c})", heads, "S")
