"""KDA prefill over segments of chunks: their affine maps, and the states at their starts.

The state is kept as ``Σ = Sᵀ [Dv, Dk]``. One chunk: ``Uᵀ = uᵀ + Σ (-w)ᵀ``, ``Σ ← Σ diag(gamma) + Uᵀ k_tail``; it is
affine in Σ, so a segment is ``Σ_out = Σ_in (diag(gamma_seg) + R) + B``.
"""

from __future__ import annotations

from dataclasses import dataclass

from k3compiler.dialects.tile.builder import Buffer, Program
from k3compiler.dialects.tile.values import Tile, dot, where
from k3compiler.kernels.kda_math import CHUNK_TOKENS as C

Workspaces = tuple[Buffer, Buffer, Buffer, Buffer]


@dataclass(frozen=True, slots=True)
class ChunkStep:
    """What kda_prepare left for head ``h``, and what a chunk does to a state of any number of rows."""

    w: Buffer
    u: Buffer
    k_tail: Buffer
    gamma: Buffer
    h: Tile
    block_k: int
    block_v: int
    dtype: str

    @staticmethod
    def declare(p: Program, heads: int, k_dim: int, v_dim: int, dtype: str) -> Workspaces:
        """The workspaces w, u, k_tail, gamma as arguments of ``p``."""
        return (
            p.buffer("w", dtype, ("NC", heads, C, k_dim)),
            p.buffer("u", dtype, ("NC", heads, v_dim, C)),
            p.buffer("k_tail", dtype, ("NC", heads, C, k_dim)),
            p.buffer("gamma", "f32", ("NC", heads, k_dim)),
        )

    def values(self, n: Tile) -> Tile:
        """uᵀ ``[block_v, C]`` f32."""
        return self.u.load((n, self.h, 0, 0), (self.block_v, C)).to("f32")

    def inner(self, state: Tile, n: Tile, start: Tile) -> Tile:
        """``Uᵀ = start + Σ (-w)ᵀ``; ``state`` in the dots' dtype."""
        w = self.w.load((n, self.h, 0, 0), (C, self.block_k))
        return dot(state, w.T, start)

    def advance(self, state: Tile, inner: Tile, n: Tile) -> Tile:
        """The f32 state after the chunk."""
        decay = self.gamma.load((n, self.h, 0), (self.block_k,)).expand(0)
        k_tail = self.k_tail.load((n, self.h, 0, 0), (C, self.block_k))
        return dot(inner.to(self.dtype), k_tail, state * decay)


def kda_segment_maps(
    p: Program, *, heads: int, k_dim: int, v_dim: int, block_k: int, block_v: int, dtype: str
) -> None:
    """B and (gamma_seg, R) of every segment; programs (head, segment, 0 for B or 1 for R).

    A sequence's first segment starts from its true state and gives B only; its last gives nothing (what
    is not needed stays unwritten). R's diagonal decay is kept apart, so that it may be rounded.

    Shapes: w, u, k_tail, gamma as kda_prepare; kda_state ``[SLOTS, SLOT_HEADS, Dv, Dk]`` f32
    -> b ``[NS, H, Dv, Dk]`` f32, r ``[NS, H, Dk, Dk]``, gamma_seg ``[NS, H, Dk]`` f32. Source: spec 3.7.
    """
    workspaces = ChunkStep.declare(p, heads, k_dim, v_dim, dtype)
    state = p.buffer("kda_state", "f32", ("SLOTS", "SLOT_HEADS", v_dim, k_dim))
    seq_ctx = p.buffer("seq_ctx", "i32", ("S",))
    seq_slot = p.buffer("seq_slot", "i32", ("S",))
    seq_seg = p.buffer("seq_seg", "i32", ("S+1",))
    seg_chunk = p.buffer("seg_chunk", "i32", ("NS+1",))
    seg_seq = p.buffer("seg_seq", "i32", ("NS",))
    b = p.buffer("b", "f32", ("NS", heads, v_dim, k_dim), "w")
    r = p.buffer("r", dtype, ("NS", heads, k_dim, k_dim), "w")
    gamma_seg = p.buffer("gamma_seg", "f32", ("NS", heads, k_dim), "w")
    h, segment, which = p.program_id(0), p.program_id(1), p.program_id(2)
    step = ChunkStep(*workspaces, h, block_k, block_v, dtype)
    seq = seg_seq.load((segment,))
    first, last = seg_chunk.load((segment,)), seg_chunk.load((segment + 1,))
    is_first = seq_seg.load((seq,)).eq(segment)
    is_inside = (segment + 1) < seq_seg.load((seq + 1,))  # not the sequence's last

    with p.when(is_inside & which.eq(0)):
        known = is_first & seq_ctx.load((seq,)).ne(0)
        rows = where(known, p.constant(v_dim, "i32"), 0)
        start = state.load(
            (seq_slot.load((seq,)), h, 0, 0), (block_v, block_k), limits=(rows, k_dim)
        )
        with p.loop(first, last, carry=[start]) as (n, (sigma,)):
            inner = step.inner(sigma.to(dtype), n, step.values(n))
            p.yield_(step.advance(sigma, inner, n))
        b.store((segment, h, 0, 0), p.results()[0])

    with p.when(is_inside & (seq_seg.load((seq,)) < segment) & which.eq(1)):
        i, j = p.arange(block_k).expand(1), p.arange(block_k).expand(0)
        one = where(i.eq(j), 1.0, p.zeros((block_k, block_k)))
        with p.loop(first, last, carry=[one, p.full((block_k,), 1.0)]) as (n, (x, decay)):
            inner = step.inner(x.to(dtype), n, p.zeros((block_k, C)))
            p.yield_(step.advance(x, inner, n), decay * step.gamma.load((n, h, 0), (block_k,)))
        x, decay = p.results()
        rest = where(i.eq(j), x - decay.expand(0), x)
        r.store((segment, h, 0, 0), rest.to(dtype))
        gamma_seg.store((segment, h, 0), decay)
    p.grid(heads, "NS", 2)


def kda_scan(
    p: Program,
    *,
    heads: int,
    k_dim: int,
    v_dim: int,
    block_k: int,
    block_rows: int,
    dtype: str,
    segmented: bool,
) -> None:
    """The state at the start of every segment, for ``block_rows`` rows of Dv a program.

    Works on the transpose ``Σᵀ [Dk, rows]``, so that R is the large left operand. In bf16 Σ goes through the product
    as a high and a low part: the carry loses no more than within a segment. Without ``segmented`` every sequence
    is one segment: initial states are copied and the maps are no arguments.

    Shapes: kda_state ``[SLOTS, SLOT_HEADS, Dv, Dk]`` f32 (zero where ``seq_ctx`` is 0); b, r, gamma_seg as
    kda_segment_maps -> seg_state ``[NS, H, Dv, Dk]`` f32. Source: spec 3.7.
    """
    state = p.buffer("kda_state", "f32", ("SLOTS", "SLOT_HEADS", v_dim, k_dim))
    maps = None
    if segmented:
        maps = (
            p.buffer("b", "f32", ("NS", heads, v_dim, k_dim)),
            p.buffer("r", dtype, ("NS", heads, k_dim, k_dim)),
            p.buffer("gamma_seg", "f32", ("NS", heads, k_dim)),
        )
    seq_ctx = p.buffer("seq_ctx", "i32", ("S",))
    seq_slot = p.buffer("seq_slot", "i32", ("S",))
    seq_seg = p.buffer("seq_seg", "i32", ("S+1",))
    seg_state = p.buffer("seg_state", "f32", ("NS", heads, v_dim, k_dim), "w")
    row, h, seq = p.program_id(0) * block_rows, p.program_id(1), p.program_id(2)
    tile = (block_rows, block_k)
    rows = where(seq_ctx.load((seq,)).eq(0), 0, p.constant(v_dim, "i32"))
    first = seq_seg.load((seq,))
    start = state.load((seq_slot.load((seq,)), h, row, 0), tile, limits=(rows, k_dim))
    seg_state.store((first, h, row, 0), start)
    if maps is not None:
        b, r, gamma_seg = maps
        with p.loop(first + 1, seq_seg.load((seq + 1,)), carry=[start.T]) as (segment, (sigma,)):
            before = segment - 1
            end = where(
                before.eq(first), 0, p.constant(k_dim, "i32")
            )  # the first has no R: all in b
            decay = gamma_seg.load((before, h, 0), (block_k,), limits=(end,)).expand(1)
            shift = b.load((before, h, row, 0), tile).T
            carry = r.load((before, h, 0, 0), (block_k, block_k), limits=(end, k_dim)).T
            after = _exact_product(carry, sigma, sigma * decay + shift, dtype)
            seg_state.store((segment, h, row, 0), after.T)
            p.yield_(after)
    p.grid(f"cdiv({v_dim}, {block_rows})", heads, "S")


def _exact_product(a: Tile, b: Tile, acc: Tile, dtype: str) -> Tile:
    """``acc + a b`` for f32 b: as it is, or in two parts of ``dtype``."""
    if dtype == "f32":
        return dot(a, b, acc)
    high = b.to(dtype)
    return dot(a, (b - high.to("f32")).to(dtype), dot(a, high, acc))
