"""The rows that need logits, and the greedy choice among them."""

from __future__ import annotations

from k3compiler.dialects.tile.builder import Program
from k3compiler.dialects.tile.values import Tile, where

NO_TOKEN = 2**31 - 1


def gather_rows(p: Program, *, cols: int, block: int, dtype: str) -> None:
    """y[r] = x[logit_rows[r]].

    Shapes: x ``[T, cols]``; logit_rows ``[R]`` i32; y ``[R, cols]``. Grid: rows, column blocks.
    """
    x = p.buffer("x", dtype, ("T", cols))
    logit_rows = p.buffer("logit_rows", "i32", ("R",))
    y = p.buffer("y", dtype, ("R", cols), "w")
    r, col = p.program_id(0), p.program_id(1) * block
    y.store((r, col), x.load((logit_rows.load((r,)), col), (1, block)))
    p.grid("R", f"cdiv({cols}, {block})")


def better(score: Tile, token: Tile, best: Tile, choice: Tile) -> tuple[Tile, Tile]:
    """Elementwise the higher score and its token; the one already held wins a tie."""
    is_better = score > best
    return where(is_better, score, best), where(is_better, token, choice)


def winner(best: Tile, choice: Tile) -> Tile:
    """The token of the highest score, the lowest of those that tie."""
    return where(best.eq(best.max(0)), choice, NO_TOKEN).min(0)


def argmax(p: Program, *, vocab: int, block: int) -> None:
    """next_token[r] = the token of the largest logit; the lowest id wins a tie.

    Shapes: logits ``[R, vocab]`` f32; next_token ``[R]`` i32. One row a program; every lane of the block keeps
    its own best, so there is one reduction a row.
    """
    logits = p.buffer("logits", "f32", ("R", vocab))
    next_token = p.buffer("next_token", "i32", ("R",), "w")
    r, lane = p.program_id(0), p.arange(block)
    start = [p.full((block,), float("-inf")), lane]
    with p.loop(0, vocab, block, carry=start) as (j, (best, choice)):
        score = logits.load((r, j), (block,), other=float("-inf"))
        p.yield_(*better(score, lane + j, best, choice))
    next_token.store((r,), winner(*p.results()))
    p.grid("R")
