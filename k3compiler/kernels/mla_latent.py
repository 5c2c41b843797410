"""MLA's cache rows ``[normed latent | rope channels]``: into the pages, and back out in one piece."""

from __future__ import annotations

from k3compiler.dialects.tile.builder import Buffer, Program
from k3compiler.dialects.tile.values import Tile, minimum, rsqrt, where

MIN_DOT = 16  # smallest extent of a dot


def padded(extent: int) -> int:
    """The tile extent that holds ``extent`` columns: a power of two that a dot takes."""
    return max(MIN_DOT, 1 << (extent - 1).bit_length())


def find_block(p: Program, number: Tile, starts: Buffer, block: int) -> tuple[Tile, Tile]:
    """(sequence, block in it) of block ``number``, sequences being cut into blocks from their own start.

    ``starts [S+1]`` are first rows; the sequence is -1 past the last block. There are at most
    ``cdiv(rows, block) + S`` blocks.
    """
    start, none = p.scalar_value(0), p.scalar_value(-1)
    with p.loop(0, p.symbol("S"), carry=[start, none, none]) as (s, (first, seq, index)):
        count = (starts.load((s + 1,)) - starts.load((s,)) + (block - 1)) // block
        here = number - first
        is_hit = (here >= 0) & (here < count)
        p.yield_(first + count, where(is_hit, s, seq), where(is_hit, here, index))
    _, seq, index = p.results()
    return seq, index


def mla_latent_write(
    p: Program,
    *,
    kv_lora: int,
    rope: int,
    page_tokens: int,
    in_cols: int,
    in_offset: int,
    q_lora: int = 0,
    q_cols: int = 0,
    q_offset: int = 0,
    eps: float,
    dtype: str,
) -> None:
    """Norms the latent of each new token and writes it, the raw rope channels beside it, to its page.

    Shapes: x ``[T, in_cols]``, from column ``in_offset`` latent and rope channels; w ``[kv_lora]``; token_seq and
    token_pos ``[T]``; page_table ``[S, P]``; mla_cache ``[PAGES, PAGE_ROWS, kv_lora + rope]``. One token a program.
    With ``q_lora``, programs of a second axis make q ``[T, q_lora]``: q_a ``[T, q_cols]`` from column ``q_offset``,
    normed with q_w ``[q_lora]``. Source: spec 4.1, 4.4.
    """
    x = p.buffer("x", dtype, ("T", in_cols))
    w = p.buffer("w", dtype, (kv_lora,))
    token_seq = p.buffer("token_seq", "i32", ("T",))
    token_pos = p.buffer("token_pos", "i32", ("T",))
    page_table = p.buffer("page_table", "i32", ("S", "P"))
    cache = p.buffer("mla_cache", dtype, ("PAGES", "PAGE_ROWS", kv_lora + rope), "rw")
    t = p.program_id(0)

    def write() -> None:
        pos = token_pos.load((t,))
        page, row = page_table.load((token_seq.load((t,)), pos // page_tokens)), pos % page_tokens
        latent = _normed(x, w, t, (in_offset, kv_lora), eps)
        first, end = in_offset + kv_lora, in_offset + kv_lora + rope
        channels = x.load((t, first), (1, padded(rope)), limits=(t + 1, end))
        cache.store((page, row, 0), latent, limits=(row + 1, kv_lora))
        cache.store((page, row, kv_lora), channels)

    if not q_lora:
        write()
        p.grid("T")
        return
    q_a = p.buffer("q_a", dtype, ("T", q_cols))
    q_w = p.buffer("q_w", dtype, (q_lora,))
    q = p.buffer("q", dtype, ("T", q_lora), "w")
    with p.when(p.program_id(1).eq(0)):
        q.store((t, 0), _normed(q_a, q_w, t, (q_offset, q_lora), eps))
    with p.when(p.program_id(1).eq(1)):
        write()
    p.grid("T", 2)


def _normed(x: Buffer, w: Buffer, row: Tile, columns: tuple[int, int], eps: float) -> Tile:
    """RMSNorm of a row's columns (first, how many), in x's format, padded."""
    first, count = columns
    raw = x.load((row, first), (1, padded(count)), limits=(row + 1, first + count)).to("f32")
    scale = rsqrt((raw * raw).sum(1) / float(count) + eps)
    weight = w.load((0,), (padded(count),)).to("f32").expand(0)
    return (raw * scale.expand(1) * weight).to(x.dtype)


def mla_gather(p: Program, *, kv_lora: int, rope: int, page_tokens: int, dtype: str) -> None:
    """latent[kv_start[s] + pos] = the cache row of sequence s at pos: one page a program.

    Shapes: kv_start ``[S+1]``; page_table ``[S, P]``; mla_cache ``[PAGES, PAGE_ROWS, kv_lora + rope]``; latent
    ``[KV, kv_lora + rope]``. ``page_tokens`` is a power of two. Source: spec 4.4.
    """
    width = kv_lora + rope
    kv_start = p.buffer("kv_start", "i32", ("S+1",))
    page_table = p.buffer("page_table", "i32", ("S", "P"))
    cache = p.buffer("mla_cache", dtype, ("PAGES", "PAGE_ROWS", width))
    latent = p.buffer("latent", dtype, ("KV", width), "w")
    seq, column = find_block(p, p.program_id(0), kv_start, page_tokens)
    with p.when(seq >= 0):
        first = kv_start.load((seq,)) + column * page_tokens
        end = kv_start.load((seq + 1,))
        page = page_table.load((seq, column))
        for at, extent in ((0, kv_lora), (kv_lora, rope)):
            limits = (minimum(end - first, page_tokens), at + extent)
            rows = cache.load((page, 0, at), (page_tokens, padded(extent)), limits=limits)
            latent.store((first, at), rows, limits=(end, at + extent))
    p.grid(f"cdiv(KV, {page_tokens}) + S")
