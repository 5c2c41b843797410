"""Router and token sort of a few tokens in two launches: the choice of each token, then all lists at once.

Between them stands ``places [T, experts]``, a byte for each token and local expert: 1 and the expert's rank among the
token's choices, 0 where it was not chosen. A column of it is what an expert has to do, in order of tokens.
"""

from __future__ import annotations

from k3compiler.dialects.tile.builder import Buffer, Program
from k3compiler.dialects.tile.values import Tile, minimum, where
from k3compiler.kernels.moe_choice import Choice, best_of_rows


def moe_choose(
    p: Program,
    *,
    experts: int,
    local_experts: int,
    top_k: int,
    block_experts: int,
    block_choices: int,
    renormalize: bool,
    scale: float,
) -> None:
    """moe_topk by the shorter way, a token a program, and the byte of every local expert.

    Shapes: logits ``[T, E]`` f32, bias ``[E]`` f32 -> ids ``[T, K]`` i32, weights ``[T, K]`` f32,
    places ``[T, local_experts]`` i8. Scalar: expert_first. Source: spec 5.1.
    """
    logits = p.buffer("logits", "f32", ("T", experts))
    bias = p.buffer("bias", "f32", (experts,))
    ids = p.buffer("ids", "i32", ("T", top_k), "w")
    weights = p.buffer("weights", "f32", ("T", top_k), "w")
    places = p.buffer("places", "i8", ("T", local_experts), "w")
    row, first = p.program_id(0), p.scalar("expert_first")
    best = Choice.of(logits, bias, row, block_experts, (experts, top_k))

    with p.when(best.count.eq(top_k)):
        best.store(ids, weights, row, renormalize, scale)
        place = where(best.is_chosen, best.place + 1, 0)
        places.store((row, -first), place.to("i8"))
    with p.when(best.count.ne(top_k)):
        shape = (1, block_experts, block_choices)
        chosen_ids, chosen = best_of_rows(logits, bias, row, shape, (experts, top_k), renormalize)
        ids.store((row, 0), chosen_ids)
        weights.store((row, 0), chosen * scale)
        place = _ranks(chosen_ids, best.expert, top_k)
        places.store((row, -first), place.to("i8"))
    p.grid("T")


def _ranks(ids: Tile, expert: Tile, top_k: int) -> Tile:
    """1 and the rank of each expert among ``ids [1, >= top_k]``, 0 for those not in it."""
    p = ids.program
    choice = p.arange(ids.shape[1]).expand(0)
    with p.loop(0, top_k, carry=[p.zeros(expert.shape, "i32")]) as (j, (place,)):
        chosen = where(choice.eq(j), ids, 0).sum(1).sum(0)
        p.yield_(where(expert.eq(chosen), j + 1, place))
    return p.results()[0]


def moe_group(
    p: Program,
    *,
    experts: int,
    top_k: int,
    block_experts: int,
    block_tokens: int,
    block_rows: int,
) -> None:
    """moe_count, moe_offsets and moe_scatter from the bytes of moe_choose.

    Every program counts all tokens and writes the pairs of ``block_tokens`` of them; the last one has none and
    writes what belongs to no token.

    Shapes: places ``[T, experts]`` i8 -> pairs ``[ROWS]``, block_expert ``[NB]``, num_blocks ``[1]``, all i32.
    """
    places = p.buffer("places", "i8", ("T", experts))
    pairs = p.buffer("pairs", "i32", ("ROWS",), "w")
    block_expert = p.buffer("block_expert", "i32", ("NB",), "w")
    num_blocks = p.buffer("num_blocks", "i32", (1,), "w")
    own, tokens = p.program_id(0) * block_tokens, p.symbol("T")
    mine = [_places(places, own + i, tokens, block_experts) for i in range(block_tokens)]
    before, count = _counts(places, tokens, own, block_experts, block_tokens)
    blocks = (count + (block_rows - 1)) // block_rows
    end, total = blocks.cumsum(0), blocks.sum(0)
    block = end - blocks
    row = block * block_rows

    with p.when(own < tokens):
        target = row + before
        for i, place in enumerate(mine):
            is_chosen = place > 0
            pair = place + ((own + i) * top_k - 1)
            pairs.store((0,), pair, rows=where(is_chosen, target, -1))
            target = where(is_chosen, target + 1, target)
    with p.when(own >= tokens):
        _store_blocks(block_expert, block, blocks, total, tokens, block_rows)
        with p.loop(0, block_rows - 1) as (i, _):
            padding = row + count + i
            nothing = p.full((block_experts,), -1, "i32")
            pairs.store((0,), nothing, rows=where(padding < end * block_rows, padding, -1))
        num_blocks.store((0,), total)
    p.grid(f"cdiv(T, {block_tokens}) + 1")


def _places(places: Buffer, token: Tile, tokens: Tile, block: int) -> Tile:
    """A token's bytes, 0 behind the last of ``tokens``."""
    end = where(token < tokens, places.program.constant(block, "i32"), 0)
    return places.load((minimum(token, tokens - 1), 0), (block,), limits=(end,)).to("i32")


def _counts(
    places: Buffer, tokens: Tile, own: Tile, block_experts: int, block_tokens: int
) -> tuple[Tile, Tile]:
    """How many tokens chose each expert: of those before ``own``, and of all."""
    p = places.program
    none = p.zeros((block_experts,), "i32")
    with p.loop(0, tokens, block_tokens, carry=[none, none]) as (token, (before, count)):
        more = none
        for i in range(block_tokens):
            is_chosen = _places(places, token + i, tokens, block_experts) > 0
            more = where(is_chosen, more + 1, more)
        p.yield_(where(token < own, before + more, before), count + more)
    before, count = p.results()
    return before, count


def _store_blocks(
    block_expert: Buffer, block: Tile, blocks: Tile, total: Tile, tokens: Tile, block_rows: int
) -> None:
    """The expert of every block, -1 behind the last one in use."""
    p, (size,) = block_expert.program, block.shape
    with p.loop(0, (tokens + (block_rows - 1)) // block_rows) as (i, _):
        block_expert.store((0,), p.arange(size), rows=where(i < blocks, block + i, -1))
    with p.loop(total, p.symbol("NB"), size) as (rest, _):
        block_expert.store((rest,), p.full((size,), -1, "i32"))
