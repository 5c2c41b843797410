"""The best experts of a token: K rounds over a block of rows, or a shorter way for one row without exact ties."""

from __future__ import annotations

from dataclasses import dataclass

from k3compiler.dialects.tile.builder import Buffer
from k3compiler.dialects.tile.values import Tile, sigmoid, where

RENORMALIZE_EPS = 1e-20
HIGHEST, LOWEST = 2**31 - 1, -(2**31)


def best_of_rows(
    logits: Buffer,
    bias: Buffer,
    row: Tile | int,
    shape: tuple[int, int, int],
    counts: tuple[int, int],
    renormalize: bool,
) -> tuple[Tile, Tile]:
    """Ids and weights (not scaled yet) of the best experts of a block of tokens, ``[block_tokens, block_choices]``.

    ``shape`` is (block_tokens, block_experts, block_choices), ``counts`` (experts, top_k).
    """
    p = logits.program
    (block_tokens, block_experts, block_choices), (experts, top_k) = shape, counts
    expert = p.arange(block_experts).expand(0)
    choice = p.arange(block_choices).expand(0)
    scores = sigmoid(logits.load((row, 0), (block_tokens, block_experts)))
    ranked = scores + bias.load((0,), (block_experts,)).expand(0)
    ranked = where(expert < experts, ranked, float("-inf"))

    chosen_ids = p.zeros((block_tokens, block_choices), "i32")
    chosen = p.zeros((block_tokens, block_choices))
    carry = [ranked, chosen_ids, chosen]
    with p.loop(0, top_k, carry=carry) as (j, (ranked, chosen_ids, chosen)):
        best = ranked.max(1).expand(1)
        at = where(ranked >= best, expert, experts - 1).min(1).expand(1)
        here, column = expert.eq(at), choice.eq(j)
        score = where(here, scores, 0.0).sum(1).expand(1)
        p.yield_(
            where(here, float("-inf"), ranked),
            where(column, at, chosen_ids),
            where(column, score, chosen),
        )
    _, chosen_ids, chosen = p.results()

    if renormalize:
        chosen = chosen / (chosen.sum(1) + RENORMALIZE_EPS).expand(1)
    return chosen_ids, chosen


@dataclass(frozen=True, slots=True)
class Choice:
    """The K best experts of one row, by expert; right where ``count`` is K, which exact ties make it not.

    ``place`` of a chosen one is its rank, from 0: the order of choices follows from the K largest keys alone.
    """

    expert: Tile
    scores: Tile
    place: Tile
    is_chosen: Tile
    count: Tile

    @classmethod
    def of(
        cls, logits: Buffer, bias: Buffer, row: Tile | int, block: int, counts: tuple[int, int]
    ) -> Choice:
        """``block`` is the power of two that holds E, ``counts`` (experts, top_k)."""
        p, (experts, top_k) = logits.program, counts
        expert = p.arange(block)
        scores = sigmoid(logits.load((row, 0), (block,)))
        key = _ordered(scores + bias.load((0,), (block,)))
        key = where(expert < experts, key, LOWEST)
        place, last = _places(key, top_k)
        is_chosen = key >= last
        count = where(is_chosen, p.constant(1, "i32"), 0).sum(0)
        return cls(expert, scores, place, is_chosen, count)

    def store(
        self, ids: Buffer, weights: Buffer, row: Tile | int, renormalize: bool, scale: float
    ) -> None:
        """Ids and scaled weights, in order of choices."""
        share = self.scores
        if renormalize:
            total = where(self.is_chosen, self.scores, 0.0).sum(0)
            share = self.scores / (total + RENORMALIZE_EPS)
        places = where(self.is_chosen, self.place, -1)
        ids.store((row, 0), self.expert, dims=(1,), rows=places)
        weights.store((row, 0), share * scale, dims=(1,), rows=places)


def _ordered(values: Tile) -> Tile:
    """i32 keys in the order of f32 values: integers are reduced in one step across a warp."""
    bits = values.bitcast("i32")
    return where(bits >= 0, bits, bits ^ HIGHEST)


def _places(keys: Tile, count: int) -> tuple[Tile, Tile]:
    """How many of the largest ``count`` distinct keys are above each key, and the last of those (LOWEST: too few)."""
    p = keys.program
    start = [keys, p.zeros(keys.shape, "i32"), p.constant(LOWEST, "i32")]
    with p.loop(0, count, carry=start) as (_, (left, place, _last)):
        best = left.max(0)
        above = where(keys < best, p.constant(1, "i32"), 0)
        p.yield_(where(left.eq(best), LOWEST, left), place + above, best)
    _, place, last = p.results()
    return place, last
