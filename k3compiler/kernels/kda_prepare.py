"""KDA prefill, second launch: everything of a chunk that does not need the state.

The scores need ``e^(G_i - G_j)`` between two tokens i > j, which a matrix product must split into two factors
around a reference c. It comes from tokens before i only, so that later tokens never change earlier outputs:

    any gate              c = G of the last token of the lower half, where i lies in the upper half of a block
                          of 64, 32, 16, 8, 4, 2 tokens and j in its lower half: both exponents are <= 0
    bounded gate (>= -5)  so for 64; within 32 tokens c = G of the token before them - 80: exponents within +-80
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from k3compiler.dialects.tile.builder import Buffer, Program
from k3compiler.dialects.tile.values import Tile, dot, exp, minimum, where
from k3compiler.kernels.kda_math import CHUNK_TOKENS as C

SUB = 16  # rows of a diagonal block of the inverse
HALF = 32
# e^LIFT on both factors keeps e^-80 k clear of the subnormals; e^(80 + LIFT) is still finite
LIFT = 4.0

Pair = tuple[Tile, Tile]  # of k kᵀ and of q kᵀ
Rows = tuple[Tile, Tile, Tile]  # q, k, G of some channels


@dataclass(frozen=True, slots=True)
class _Chunk:
    """One chunk's rows ``start .. end`` of head ``h``, and the index vectors of its tiles."""

    k_dim: int
    block_k: int
    precision: str
    q: Buffer
    k: Buffer
    g: Buffer
    start: Tile
    end: Tile
    h: Tile
    row: Tile  # [C]

    def keys(self, buffer: Buffer, d0: int) -> Tile:
        """``[C, block_k]`` f32, zeros behind the chunk's end."""
        return self._rows(buffer, self.start, d0, None)

    def gate_at(self, d0: int, rows: Tile) -> Tile:
        """G ``[C, block_k]`` at these rows of the chunk; rows behind the end have the last token's."""
        return self._rows(self.g, 0, d0, minimum(rows + self.start, self.end - 1))

    def _rows(self, buffer: Buffer, first: Tile | int, d0: int, rows: Tile | None) -> Tile:
        return buffer.load(
            (first, self.h, d0),
            (C, self.block_k),
            dims=(0, 2),
            rows=rows,
            limits=(self.end, self.k_dim),
        ).to("f32")

    def total(self, d0: int, row: int = C - 1) -> Tile:
        """G at a row as ``[1, block_k]``; rows behind the end have the last token's."""
        last = minimum(self.start + row, self.end - 1)
        return self.g.load((last, self.h, d0), (self.block_k,), limits=(self.k_dim,)).expand(0)

    def gate(self, d0: int) -> Tile:
        """G ``[C, block_k]``; rows behind the end have the last token's, so that they decay nothing."""
        inside = (self.row + self.start < self.end).expand(1)
        return where(inside, self.keys(self.g, d0), self.total(d0))

    def rows(self, d0: int) -> Rows:
        """q, k and G."""
        return self.keys(self.q, d0), self.keys(self.k, d0), self.gate(d0)

    def in_second_half(self) -> Tile:
        return (self.row >= HALF).expand(1)

    def product(self, left: Tile, right: Tile, acc: Tile) -> Tile:
        """``acc + left rightᵀ``."""
        return dot(left, right.T, acc, precision=self.precision)


def _products(c: _Chunk, own: Rows, factors: Pair, acc: Pair) -> Pair:
    """Adds ``(k up) (k down)ᵀ`` and ``(q up) (k down)ᵀ``; factors are (up, down)."""
    q, k, _ = own
    right = k * factors[1]
    return c.product(k * factors[0], right, acc[0]), c.product(q * factors[0], right, acc[1])


def _across(c: _Chunk, own: Rows, reference: Tile, acc: Pair) -> Pair:
    """Pairs on two sides of the reference: both exponents are <= 0 there (and capped elsewhere)."""
    g = own[2]
    factors = exp(minimum(g - reference, 0.0)), exp(minimum(reference - g, 0.0))
    return _products(c, own, factors, acc)


def _lifted(decay: Tile, shift: float) -> Pair:
    """``e^(decay + shift + LIFT)`` and ``e^(LIFT - shift - decay)`` for a decay of -2 shift to 0.

    In two halves: a sum in the exponent would round what gates near 1 have to the spacing around ``shift``.
    """
    up, down = exp(decay * 0.5), exp(decay * -0.5)
    return up * math.exp(LIFT + shift) * up, down * math.exp(LIFT - shift) * down


def _bounded_scores(p: Program, c: _Chunk, lower_bound: float) -> Pair:
    """``(k kᵀ, q kᵀ)`` with decay for i >= j; above the diagonal anything."""
    far = near = (p.zeros((C, C)), p.zeros((C, C)))
    for d0 in range(0, c.k_dim, c.block_k):
        own = c.rows(d0)
        middle = c.total(d0, HALF - 1)
        far = _across(c, own, middle, far)
        decay = own[2] - where(c.in_second_half(), middle, 0.0)
        near = _products(c, own, _lifted(decay, -HALF // 2 * lower_bound), near)
    same = _same_block(c, HALF)
    unlift = math.exp(-2 * LIFT)
    return where(same, near[0] * unlift, far[0]), where(same, near[1] * unlift, far[1])


def _unbounded_scores(p: Program, c: _Chunk) -> Pair:
    """As :func:`_bounded_scores`, without any bound on the decay: block sizes 64, 32, ... 2 in turn."""
    zero, one = (p.zeros((C, C)), p.zeros((C, C))), p.constant(1, "i32")
    with p.loop(0, C.bit_length() - 1, carry=zero) as (level, scores):
        bits = (C.bit_length() - 1) - level  # of a token's index in its block
        block, half = c.row >> bits, one << (bits - 1)
        reference = (block << bits) + (half - 1)
        products = zero
        for d0 in range(0, c.k_dim, c.block_k):
            products = _across(c, c.rows(d0), c.gate_at(d0, reference), products)
        is_upper = (c.row & half).ne(0)
        pair = block.expand(1).eq(block.expand(0)) & is_upper.expand(1)
        pair = pair & (c.row & half).eq(0).expand(0)
        p.yield_(where(pair, products[0], scores[0]), where(pair, products[1], scores[1]))
    kk, qk = p.results()
    own = p.zeros((C,))
    for d0 in range(0, c.k_dim, c.block_k):
        own = own + (c.keys(c.q, d0) * c.keys(c.k, d0)).sum(1)
    return kk, where(c.row.expand(1).eq(c.row.expand(0)), own.expand(1), qk)


def _same_block(c: _Chunk, size: int) -> Tile:
    """Whether row and column lie in one block of ``size`` tokens, i1 ``[C, C]``."""
    block = c.row // size
    return block.expand(1).eq(block.expand(0))


def _unit_lower_inverse(p: Program, a: Tile, row: Tile, precision: str) -> Tile:
    """``(I + a)⁻¹`` of a strictly lower ``[C, C]``.

    With a = N + F, N its blocks of 16 on the diagonal: D = (I + N)⁻¹ by substitution, one column after the
    other in all blocks at once, and ``I + a = D⁻¹ (I + X)`` with X = D F, X⁴ = 0: the inverse is (I - X)(I + X²) D.
    """
    i, j = row.expand(1), row.expand(0)
    same = (row // SUB).expand(1).eq((row // SUB).expand(0))
    one = where(i.eq(j), 1.0, p.zeros((C, C)))
    row_in_block, column_base = row % SUB, row - row % SUB
    with p.loop(0, SUB - 1, carry=[one]) as (n, (d,)):
        pivot = column_base + n
        factor = where(j.eq(pivot.expand(1)), a, 0.0).sum(1)  # a[i, pivot of i's block]
        pivot_row = where(i.eq(pivot.expand(0)), d, 0.0).sum(0)  # d[pivot of j's block, j]
        below = same & (row_in_block > n).expand(1)
        p.yield_(d - where(below, factor.expand(1) * pivot_row.expand(0), 0.0))
    (d,) = p.results()
    x = dot(d, where(same, 0.0, a), precision=precision)
    x2 = dot(x, x, precision=precision)
    merge = dot(-x, x2, one - x + x2, precision=precision)
    return dot(merge, d, precision=precision)


def kda_prepare(
    p: Program,
    *,
    heads: int,
    k_dim: int,
    v_dim: int,
    block_k: int,
    block_v: int,
    lower_bound: float | None,
    dtype: str,
    precision: str,
    inverse_precision: str,
) -> None:
    """A, M, ``(I + A)⁻¹``, and what the later launches read. One program per (head, chunk).

    ``block_k`` and ``block_v`` are the channels worked on at a time. ``precision`` is that of the scores and of
    w and u, ``inverse_precision`` that of the inverse's merge. Rows behind the chunk's end come out as zeros.

    Shapes: q, k ``[T, H, Dk]``, v ``[T, H, Dv]``, g ``[T, H, Dk]`` f32 (cumulative in the chunk), beta ``[T, H]`` f32
    -> w ``[NC, H, C, Dk]`` (**negated**: -Tm (beta k e^G)), u ``[NC, H, Dv, C]`` (**transposed**),
    q_decayed = q e^G and k_tail = k e^(G_C - G) ``[NC, H, C, Dk]``, m ``[NC, H, C, C]``, gamma = e^G_C
    ``[NC, H, Dk]`` f32. Source: spec 3.7.
    """
    q = p.buffer("q", dtype, ("T", heads, k_dim))
    k = p.buffer("k", dtype, ("T", heads, k_dim))
    v = p.buffer("v", dtype, ("T", heads, v_dim))
    g = p.buffer("g", "f32", ("T", heads, k_dim))
    beta = p.buffer("beta", "f32", ("T", heads))
    chunk_start = p.buffer("chunk_start", "i32", ("NC",))
    chunk_end = p.buffer("chunk_end", "i32", ("NC",))
    w = p.buffer("w", dtype, ("NC", heads, C, k_dim), "w")
    u = p.buffer("u", dtype, ("NC", heads, v_dim, C), "w")
    q_decayed = p.buffer("q_decayed", dtype, ("NC", heads, C, k_dim), "w")
    k_tail = p.buffer("k_tail", dtype, ("NC", heads, C, k_dim), "w")
    m = p.buffer("m", dtype, ("NC", heads, C, C), "w")
    gamma = p.buffer("gamma", "f32", ("NC", heads, k_dim), "w")
    h, n = p.program_id(0), p.program_id(1)
    start, end, row = chunk_start.load((n,)), chunk_end.load((n,)), p.arange(C)
    c = _Chunk(k_dim, block_k, precision, q, k, g, start, end, h, row)

    for d0 in range(0, k_dim, block_k):
        gate, total = c.gate(d0), c.total(d0)
        q_decayed.store((n, h, 0, d0), (c.keys(q, d0) * exp(gate)).to(dtype))
        k_tail.store((n, h, 0, d0), (c.keys(k, d0) * exp(total - gate)).to(dtype))
        gamma.store((n, h, d0), exp(total).reshape(block_k))

    scores = _unbounded_scores(p, c) if lower_bound is None else _bounded_scores(p, c, lower_bound)
    i, j = row.expand(1), row.expand(0)
    m.store((n, h, 0, 0), where(i >= j, scores[1], 0.0).to(dtype))
    rate = beta.load((start, h), (C,), dims=[0], limits=(end,))
    a = where(i > j, scores[0] * rate.expand(1), 0.0)
    transform = _unit_lower_inverse(p, a, row, inverse_precision) * rate.expand(0)

    for d0 in range(0, k_dim, block_k):
        decayed = c.keys(k, d0) * exp(c.gate(d0))
        w.store((n, h, 0, d0), (-dot(transform, decayed, precision=precision)).to(dtype))
    for d0 in range(0, v_dim, block_v):
        values = v.load((start, h, d0), (C, block_v), dims=(0, 2), limits=(end, v_dim)).to("f32")
        u.store((n, h, d0, 0), dot(values.T, transform.T, precision=precision).to(dtype))
    p.grid(heads, "NC")
