"""Router and token sort: top-k experts, then the entries (token, choice) grouped by expert.

An *entry* is ``t*K + j``, token t's choice j. Sorted rows come in blocks of ``block_rows`` that belong
to one expert each; what an expert's last block lacks is -1. No atomics: one program an expert scans
all entries in order, so the result is the same every time.
"""

from __future__ import annotations

from k3compiler.dialects.tile.builder import Program
from k3compiler.dialects.tile.values import sigmoid, where

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
