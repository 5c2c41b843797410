"""Gated MLA over many tokens: flash attention on keys and values expanded from the latents."""

from __future__ import annotations

from math import e, log2

from k3compiler.dialects.tile.builder import Program
from k3compiler.dialects.tile.values import Tile, dot, exp2, maximum, minimum, sigmoid, where
from k3compiler.kernels.mla_latent import find_block, padded


def mla_prefill(
    p: Program,
    *,
    heads: int,
    nope: int,
    rope: int,
    v: int,
    kv_lora: int,
    block_m: int,
    block_n: int,
    gate: bool,
    g_cols: int = 0,
    g_offset: int = 0,
    dtype: str,
) -> None:
    """o = softmax([q_nope | q_rope] [k_nope | kp]ᵀ (nope + rope)^-0.5, causal) v, times sigmoid(g) with ``gate``.

    Shapes: q ``[T, heads, nope + rope]``; kv ``[KV, heads (nope + v)]``, per head k_nope then v; latent
    ``[KV, kv_lora + rope]``, of which the rope channels are read; g ``[T, g_cols]``, head h at column
    ``g_offset + h v``; seq_start and kv_start ``[S+1]``; seq_ctx ``[S]``; o ``[T, heads v]``.
    KV row kv_start[s] + pos is absolute position pos; query row seq_start[s] + i stands at position
    seq_ctx[s] + i. Keys are swept in absolute blocks of ``block_n``, so a row's result depends neither on
    the batch nor on how its prompt was fed.
    Grid: blocks of ``block_m`` queries of one sequence, heads. Source: spec 4.1.
    """
    q = p.buffer("q", dtype, ("T", heads, nope + rope))
    kv = p.buffer("kv", dtype, ("KV", heads * (nope + v)))
    latent = p.buffer("latent", dtype, ("KV", kv_lora + rope))
    g = p.buffer("g", dtype, ("T", g_cols)) if gate else None
    seq_start = p.buffer("seq_start", "i32", ("S+1",))
    kv_start = p.buffer("kv_start", "i32", ("S+1",))
    seq_ctx = p.buffer("seq_ctx", "i32", ("S",))
    o = p.buffer("o", dtype, ("T", heads * v), "w")
    p.grid(f"cdiv(T, {block_m}) + S", heads)
    # from the last block down: the longest rows start first
    number = (p.symbol("T") + (block_m - 1)) // block_m + p.symbol("S") - 1 - p.program_id(0)
    seq, index = find_block(p, number, seq_start, block_m)
    h = p.program_id(1)
    scale = (nope + rope) ** -0.5 * log2(e)

    with p.when(seq >= 0):
        first = seq_start.load((seq,)) + index * block_m
        end = seq_start.load((seq + 1,))
        base, kv_end = kv_start.load((seq,)), kv_start.load((seq + 1,))
        position = seq_ctx.load((seq,)) + index * block_m
        positions = (p.arange(block_m) + position).expand(1)
        q_nope = q.load((first, h, 0), (block_m, padded(nope)), dims=(0, 2), limits=(end, nope))
        q_rope = q.load(
            (first, h, nope), (block_m, padded(rope)), dims=(0, 2), limits=(end, nope + rope)
        )
        k_col, v_col = h * (nope + v), h * (nope + v) + nope

        def step(j: Tile, sums: tuple[Tile, ...], is_whole: bool) -> tuple[Tile, ...]:
            m, l, acc = sums
            row = base + j
            k = kv.load((row, k_col), (block_n, padded(nope)), limits=(kv_end, v_col))
            kp = latent.load(
                (row, kv_lora), (block_n, padded(rope)), limits=(kv_end, kv_lora + rope)
            )
            s = dot(q_rope, kp.T, dot(q_nope, k.T)) * scale
            if not is_whole:
                s = where((p.arange(block_n) + j).expand(0) <= positions, s, float("-inf"))
            m_new = maximum(m, s.max(1))
            fade = exp2(m - m_new)
            weight = exp2(s - m_new.expand(1))
            value = kv.load((row, v_col), (block_n, padded(v)), limits=(kv_end, v_col + v))
            acc = dot(weight.to(dtype), value, acc * fade.expand(1))
            return m_new, l * fade + weight.sum(1), acc

        sums = (
            p.full((block_m,), float("-inf")),
            p.zeros((block_m,)),
            p.zeros((block_m, padded(v))),
        )
        whole = (position + 1) // block_n * block_n  # keys of whole blocks that every row sees
        stop = minimum(position + block_m, kv_end - base)
        for first_key, last_key, is_whole in ((0, whole, True), (whole, stop, False)):
            with p.loop(first_key, last_key, block_n, carry=sums) as (j, sums):
                p.yield_(*step(j, sums, is_whole))
            sums = p.results()
        _, l, acc = sums
        out = acc / l.expand(1)
        if g is not None:
            at = h * v + g_offset
            out = out * sigmoid(
                g.load((first, at), (block_m, padded(v)), limits=(end, at + v)).to("f32")
            )
        o.store((first, h * v), out.to(dtype), limits=(end, (h + 1) * v))
