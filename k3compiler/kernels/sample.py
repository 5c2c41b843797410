"""Sampling from the logits: temperature, top-k, top-p and a counter-based random number a token.

Three launches: the lowest logit that top-k and top-p leave of each row (no work where both are off), the best
token of every chunk of a row, and the best of those.

The rules, which ``check/cases/sample.py`` states again in numpy:

* ``temperature`` 0 is argmax (lowest id wins a tie); the other settings do not matter then.
* top-k keeps every token whose logit is at least the k-th largest one (ties at the border all stay); 0 is off.
* top-p works on what top-k left, with weights exp((logit - max) / temperature). It keeps every token whose logit
  is at least τ, the largest τ for which the kept tokens hold ``top_p`` of the weight; 1 is off.
* The token is the argmax over the kept ones of logit / temperature + g (Gumbel-max), lowest id on a tie:

      g = -ln(-ln u),  u = (floor(h / 2^9) + 1/2) / 2^23,  h = mix(key xor mix(token)),
      key = mix(step_idx xor mix(seed)),  all in 32 bits without sign;

  mix is the finaliser of MurmurHash3: x ^= x >> 16, x *= 0x85ebca6b, x ^= x >> 13, x *= 0xc2b2ae35, x ^= x >> 16.

Logits are compared through integers of the same order (``_ordered``): both borders are found exactly,
two bits a sweep over the row.
"""

from __future__ import annotations

from collections.abc import Callable

from k3compiler.dialects.tile.builder import Buffer, Program
from k3compiler.dialects.tile.values import Tile, exp, log, maximum, where
from k3compiler.kernels.logits import NO_TOKEN, winner

LOWEST = -(2**31)
SWEEPS = 16  # two bits of 32 each
LEAST_HEAT = 1e-30  # its inverse times a logit is finite
MIX = ((16, 0x85EBCA6B), (13, 0xC2B2AE35))
Weigh = Callable[[Tile], Tile]


def sample_border(p: Program, *, vocab: int, block: int) -> None:
    """border[r] = the ``_ordered`` lowest logit that may be drawn, ``LOWEST`` where all may; one row a program.

    Shapes: logits ``[R, vocab]`` f32, without NaN; temperature, top_p ``[R]`` f32; top_k, border ``[R]`` i32.
    """
    logits = p.buffer("logits", "f32", ("R", vocab))
    temperature = p.buffer("temperature", "f32", ("R",))
    top_k = p.buffer("top_k", "i32", ("R",))
    top_p = p.buffer("top_p", "f32", ("R",))
    out = p.buffer("border", "i32", ("R",), "w")
    r = p.program_id(0)
    p.grid("R")
    row = _Row(p, logits, r, vocab, block)
    heat, k, share = temperature.load((r,)), top_k.load((r,)), top_p.load((r,))
    is_k, is_p = (k > 0) & (heat > 0.0), (share < 1.0) & (heat > 0.0)
    top, inverse = row.largest_logit(is_p), _inverse(heat)

    def weigh(z: Tile) -> Tile:
        return exp((z - top) * inverse)

    border = row.border(lambda z: p.full(z.shape, 1.0), k.to("f32"), is_k)
    (held,) = row.held([border], weigh, is_p)
    border = maximum(border, row.border(weigh, maximum(share, 1e-7) * held, is_p))
    out.store((r,), border)


def sample_draw(p: Program, *, vocab: int, chunk: int) -> None:
    """The best of every chunk's tokens from the row's border on: its score and its id.

    Shapes: logits ``[R, vocab]`` f32, without NaN; temperature ``[R]`` f32; border, seed, step_idx ``[R]`` i32;
    score f32 and token i32 ``[R, cdiv(vocab, chunk)]``. Grid: chunks, rows.
    """
    chunks = -(-vocab // chunk)
    logits = p.buffer("logits", "f32", ("R", vocab))
    temperature = p.buffer("temperature", "f32", ("R",))
    border = p.buffer("border", "i32", ("R",))
    seed = p.buffer("seed", "i32", ("R",))
    step_idx = p.buffer("step_idx", "i32", ("R",))
    score = p.buffer("score", "f32", ("R", chunks), "w")
    token = p.buffer("token", "i32", ("R", chunks), "w")
    c, r = p.program_id(0), p.program_id(1)
    p.grid(chunks, "R")
    at = p.arange(chunk) + c * chunk
    z = logits.load((r, c * chunk), (chunk,), other=float("-inf"))
    heat = temperature.load((r,))
    key = _mix(step_idx.load((r,)) ^ _mix(seed.load((r,))))
    drawn = z * _inverse(heat) + _gumbel(_mix(_mix(at) ^ key))
    kept = where(_ordered(z) >= border.load((r,)), drawn, float("-inf"))
    value = where(heat <= 0.0, z, kept)
    score.store((r, c), value.max(0))
    token.store((r, c), winner(value, at))


def sample_pick(p: Program, *, chunks: int, block_chunks: int) -> None:
    """next_token[r] = the token of the best chunk; the first of those that tie has the lowest ids.

    Shapes: score f32 and token i32 ``[R, chunks]``; next_token ``[R]`` i32.
    """
    score = p.buffer("score", "f32", ("R", chunks))
    token = p.buffer("token", "i32", ("R", chunks))
    next_token = p.buffer("next_token", "i32", ("R",), "w")
    r = p.program_id(0)
    p.grid("R")
    best = score.load((r, 0), (block_chunks,), other=float("-inf"))
    ids = where(p.arange(block_chunks) < chunks, token.load((r, 0), (block_chunks,)), NO_TOKEN)
    next_token.store((r,), winner(best, ids))


def _inverse(heat: Tile) -> Tile:
    return 1.0 / where(heat <= 0.0, 1.0, maximum(heat, LEAST_HEAT))


class _Row:
    """Sweeps over one row of logits, a block at a time."""

    def __init__(self, p: Program, logits: Buffer, r: Tile, vocab: int, block: int) -> None:
        self.p, self.logits, self.r, self.vocab, self.block = p, logits, r, vocab, block

    def load(self, j: Tile) -> Tile:
        return self.logits.load((self.r, j), (self.block,), other=float("-inf"))

    def _end(self, is_on: Tile) -> Tile:
        """Where a sweep ends: at once where nobody asks for what it finds."""
        return where(is_on, self.p.scalar_value(self.vocab), 0)

    def largest_logit(self, is_on: Tile) -> Tile:
        start = [self.p.full((self.block,), float("-inf"))]
        with self.p.loop(0, self._end(is_on), self.block, carry=start) as (j, (top,)):
            self.p.yield_(maximum(top, self.load(j)))
        (top,) = self.p.results()
        return top.max(0)

    def held(self, borders: list[Tile], weigh: Weigh, is_on: Tile) -> list[Tile]:
        """The weight of the logits at or above each border (f32 scalars)."""
        start = [self.p.zeros((self.block,)) for _ in borders]
        with self.p.loop(0, self._end(is_on), self.block, carry=start) as (j, sums):
            z = self.load(j)
            order, weight = _ordered(z), weigh(z)
            self.p.yield_(
                *(a + where(order >= b, weight, 0.0) for a, b in zip(sums, borders, strict=True))
            )
        return [total.sum(0) for total in self.p.results()]

    def border(self, weigh: Weigh, need: Tile, is_on: Tile) -> Tile:
        """The largest border that holds ``need``; the lowest of all where it is off."""
        p = self.p
        start = [p.constant(LOWEST, "i32"), p.constant(1 << 30, "i32")]
        with p.loop(0, where(is_on, p.scalar_value(SWEEPS), 0), carry=start) as (_, (low, step)):
            borders = [low + step, low + step + step, low + step + step + step]
            found = low
            for border, held in zip(borders, self.held(borders, weigh, is_on), strict=True):
                found = where(held >= need, border, found)
            p.yield_(found, step >> 2)
        found, _ = p.results()
        return found


def _ordered(z: Tile) -> Tile:
    """Integers in the order of the floats: negative ones have their magnitude's bits flipped."""
    bits = z.bitcast("i32")
    return where(bits < 0, bits ^ 0x7FFFFFFF, bits)


def _mix(x: Tile) -> Tile:
    """32 bits in, 32 well-mixed bits out."""
    for shift, factor in MIX:
        x = (x ^ (x >> shift)) * (factor - (1 << 32))
    return x ^ (x >> 16)


def _gumbel(h: Tile) -> Tile:
    uniform = ((h >> 9).to("f32") + 0.5) * 2.0**-23
    return -log(-log(uniform))
