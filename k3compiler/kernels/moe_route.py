"""Router and token sort: top-k experts, then the pairs (token, choice) grouped by expert.

A *pair* is ``t*K + j``, token t's choice j. Sorted rows come in blocks of ``block_rows`` that belong
to one expert each; what an expert's last block lacks is -1. No atomics: one program an expert scans
all pairs in order, so the result is the same every time. Local experts are ``expert_first`` (a scalar)
to ``expert_first + experts``; all others' pairs are left out.
"""

from __future__ import annotations

from dataclasses import dataclass

from k3compiler.dialects.tile.builder import Buffer, Program
from k3compiler.dialects.tile.values import Tile, maximum, where
from k3compiler.kernels.moe_choice import Choice, best_of_rows


def moe_topk(
    p: Program,
    *,
    experts: int,
    top_k: int,
    block_tokens: int,
    block_experts: int,
    block_choices: int,
    renormalize: bool,
    scale: float,
) -> None:
    """Sigmoid, the ``top_k`` largest of score + bias (lowest index on a tie), weights of the chosen.

    ``block_experts`` and ``block_choices`` are the powers of two that hold E and K.

    Shapes: logits ``[T, E]`` f32, bias ``[E]`` f32 -> ids ``[T, K]`` i32, weights ``[T, K]`` f32.
    Source: spec 5.1.
    """
    logits = p.buffer("logits", "f32", ("T", experts))
    bias = p.buffer("bias", "f32", (experts,))
    ids = p.buffer("ids", "i32", ("T", top_k), "w")
    weights = p.buffer("weights", "f32", ("T", top_k), "w")
    row = p.program_id(0) * block_tokens
    shape = (block_tokens, block_experts, block_choices)
    chosen_ids, chosen = best_of_rows(logits, bias, row, shape, (experts, top_k), renormalize)
    ids.store((row, 0), chosen_ids)
    weights.store((row, 0), chosen * scale)
    p.grid(f"cdiv(T, {block_tokens})")


def moe_route(
    p: Program,
    *,
    experts: int,
    local_experts: int,
    top_k: int,
    block_experts: int,
    block_choices: int,
    block_rows: int,
    renormalize: bool,
    scale: float,
) -> None:
    """moe_topk, moe_count, moe_offsets and moe_scatter of one token, in one program.

    A chosen expert is a block, which lies behind those of the chosen experts below it. Where the scores at hand differ,
    the order of choices follows from the K largest alone; exact ties take the way of moe_topk.

    Shapes: logits ``[1, E]`` f32, bias ``[E]`` f32 -> ids ``[1, K]`` i32, weights ``[1, K]`` f32, pairs ``[ROWS]``,
    block_expert ``[NB]``, num_blocks ``[1]`` i32. Scalar: expert_first. Source: spec 5.1, 5.2.
    """
    logits = p.buffer("logits", "f32", ("T", experts))
    bias = p.buffer("bias", "f32", (experts,))
    ids = p.buffer("ids", "i32", ("T", top_k), "w")
    weights = p.buffer("weights", "f32", ("T", top_k), "w")
    out = _Blocks(
        p.buffer("pairs", "i32", ("ROWS",), "w"),
        p.buffer("block_expert", "i32", ("NB",), "w"),
        p.buffer("num_blocks", "i32", (1,), "w"),
        p.scalar("expert_first"),
        local_experts,
        block_rows,
    )
    expert = p.arange(block_experts)
    best = Choice.of(logits, bias, 0, block_experts, (experts, top_k))

    with p.when(best.count.eq(top_k)):
        best.store(ids, weights, 0, renormalize, scale)
        is_local = best.is_chosen & out.is_local(expert)
        block = where(is_local, p.constant(1, "i32"), 0).cumsum(0) - 1
        out.store(expert, best.place, where(is_local, block, -1), top_k, block_choices)
    with p.when(best.count.ne(top_k)):
        shape = (1, block_experts, block_choices)
        chosen_ids, chosen = best_of_rows(logits, bias, 0, shape, (experts, top_k), renormalize)
        ids.store((0, 0), chosen_ids)
        weights.store((0, 0), chosen * scale)
        column = p.arange(block_choices)
        mine = where(column < top_k, chosen_ids.reshape(block_choices), -1)
        is_below = mine.expand(0) < mine.expand(1)
        counted = where(out.is_local(mine), p.constant(1, "i32"), 0).expand(0)
        block = where(is_below, counted, 0).sum(1)
        out.store(mine, column, where(out.is_local(mine), block, -1), top_k, block_choices)
    p.grid(1)


@dataclass(frozen=True, slots=True)
class _Blocks:
    """One token's sorted rows: every local choice is the first row of a block of its own."""

    pairs: Buffer
    block_expert: Buffer
    num_blocks: Buffer
    expert_first: Tile
    local_experts: int
    block_rows: int

    def is_local(self, expert: Tile) -> Tile:
        local = expert - self.expert_first
        return (local >= 0) & (local < self.local_experts)

    def store(
        self, expert: Tile, choice: Tile, block: Tile, top_k: int, block_choices: int
    ) -> None:
        """Entries with their expert, choice and block (-1: not a local choice); -1 behind them."""
        p = self.pairs.program
        used = where(block >= 0, p.constant(1, "i32"), 0).sum(0)
        self.pairs.store((0,), choice, rows=where(block >= 0, block * self.block_rows, -1))
        index = p.arange(block_choices * self.block_rows)
        is_padding = (index % self.block_rows).ne(0) & (index < used * self.block_rows)
        nothing = p.full((block_choices * self.block_rows,), -1, "i32")
        self.pairs.store((0,), nothing, rows=where(is_padding, index, -1))
        self.block_expert.store((0,), expert - self.expert_first, rows=block)
        slot = p.arange(block_choices)
        rest = where((slot >= used) & (slot < top_k), slot, -1)
        self.block_expert.store((0,), p.full((block_choices,), -1, "i32"), rows=rest)
        self.num_blocks.store((0,), used)


def _chosen(ids: Buffer, token: Tile, shape: tuple[int, int], expert: Tile) -> Tile:
    """1 where a pair of these tokens chose ``expert``, else 0; flat, in order of pairs."""
    choices = ids.load((token, 0), shape, other=-1).reshape(shape[0] * shape[1])
    one = ids.program.constant(1, "i32")
    return where(choices.eq(expert), one, 0)


def moe_count(
    p: Program, *, experts: int, top_k: int, block_tokens: int, block_choices: int
) -> None:
    """How many pairs chose each local expert.

    Shapes: ids ``[T, K]`` i32 -> counts ``[experts]`` i32. Scalar: expert_first.
    """
    ids = p.buffer("ids", "i32", ("T", top_k))
    counts = p.buffer("counts", "i32", (experts,), "w")
    expert = p.program_id(0) + p.scalar("expert_first")
    shape = (block_tokens, block_choices)
    with p.loop(0, p.symbol("T"), block_tokens, carry=[p.constant(0, "i32")]) as (token, (count,)):
        p.yield_(count + _chosen(ids, token, shape, expert).sum(0))
    counts.store((p.program_id(0),), p.results()[0])
    p.grid(experts)


def moe_offsets(
    p: Program, *, experts: int, block_rows: int, block_experts: int, block: int
) -> None:
    """First sorted row of every local expert, the expert of every block (-1 past the last), their number.

    Every program repeats the sum over experts and writes ``block`` entries of block_expert.

    Shapes: counts ``[experts]`` -> starts ``[experts]``, block_expert ``[NB]``, num_blocks ``[1]``, all i32.
    """
    counts = p.buffer("counts", "i32", (experts,))
    starts = p.buffer("starts", "i32", (experts,), "w")
    block_expert = p.buffer("block_expert", "i32", ("NB",), "w")
    num_blocks = p.buffer("num_blocks", "i32", (1,), "w")
    pid = p.program_id(0)
    blocks = (counts.load((0,), (block_experts,)) + (block_rows - 1)) // block_rows
    end, total = blocks.cumsum(0), blocks.sum(0)
    index = p.arange(block) + pid * block
    passed = where(end.expand(0) <= index.expand(1), p.constant(1, "i32"), 0).sum(1)
    block_expert.store((pid * block,), where(index < total, passed, -1))
    with p.when(pid.eq(0)):
        starts.store((0,), (end - blocks) * block_rows)
        num_blocks.store((0,), total)
    p.grid(f"cdiv(NB, {block})")


def moe_scatter(
    p: Program, *, experts: int, top_k: int, block_rows: int, block_tokens: int, block_choices: int
) -> None:
    """The sorted rows: every local expert's pairs, ascending, then -1 to the end of its last block.

    Rows behind the last block in use stay unwritten.

    Shapes: ids ``[T, K]`` i32, starts ``[experts]`` i32 -> pairs ``[ROWS]`` i32 (ROWS = NB*block_rows).
    Scalar: expert_first.
    """
    ids = p.buffer("ids", "i32", ("T", top_k))
    starts = p.buffer("starts", "i32", (experts,))
    pairs = p.buffer("pairs", "i32", ("ROWS",), "w")
    local = p.program_id(0)
    expert = local + p.scalar("expert_first")
    shape = (block_tokens, block_choices)
    first = starts.load((local,))
    offsets = p.arange(block_tokens).expand(1) * top_k + p.arange(block_choices).expand(0)
    offsets = offsets.reshape(block_tokens * block_choices)
    with p.loop(0, p.symbol("T"), block_tokens, carry=[first]) as (token, (row,)):
        hit = _chosen(ids, token, shape, expert)
        target = where(hit.eq(1), hit.cumsum(0) + (row - 1), -1)
        pairs.store((0,), offsets + token * top_k, rows=target)
        p.yield_(row + hit.sum(0))
    (row,) = p.results()
    end = first + (row - first + (block_rows - 1)) // block_rows * block_rows
    pairs.store((row,), p.full((block_rows,), -1, "i32"), limits=(end,))
    p.grid(experts)


def token_of(pair: Tile, top_k: int) -> Tile:
    """The token of every pair, -1 where there is none."""
    return where(pair >= 0, maximum(pair, 0) // top_k, -1)
