"""Router and token sort: top-k experts, then the pairs (token, choice) grouped by expert.

A *pair* is ``t*K + j``, token t's choice j. Sorted rows come in blocks of ``block_rows`` that belong
to one expert each; what an expert's last block lacks is -1. No atomics: one program an expert scans
all pairs in order, so the result is the same every time. Local experts are ``expert_first`` (a scalar)
to ``expert_first + experts``; all others' pairs are left out.
"""

from __future__ import annotations

from k3compiler.dialects.tile.builder import Buffer, Program
from k3compiler.dialects.tile.values import Tile, maximum, sigmoid, where

RENORMALIZE_EPS = 1e-20


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
    ids.store((row, 0), chosen_ids)
    weights.store((row, 0), chosen * scale)
    p.grid(f"cdiv(T, {block_tokens})")


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
