"""How many tokens a draft saves: greedy speculative decoding of the target's own continuations."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from examples.train.draft_model import DraftNet
from examples.train.model import Model, Trace


def tapped_rows(trace: Trace, tokens: Tensor) -> Tensor:
    """The tapped running sums side by side, layers ascending: -> ``[B, T, layers * D]``."""
    rows = torch.cat([trace.tapped[n] for n in sorted(trace.taps)], dim=-1)
    return rows.view(*tokens.shape, -1)


@torch.no_grad()
def continued(model: Model, prompts: Tensor, count: int, use_graph: bool) -> Tensor:
    """Greedy continuations ``[B, P + count]`` of ``prompts [B, P]``; P + count in 64s.

    Every step runs the whole window again: the training model keeps no caches.
    """
    batch, length = prompts.shape[0], prompts.shape[1] + count
    tokens = F.pad(prompts, (0, count))
    last = torch.full((1,), prompts.shape[1] - 1, device=prompts.device)

    def step() -> None:
        rows = model.hidden(tokens).view(batch, length, -1).index_select(1, last)[:, 0]
        logits = F.linear(rows, model.weights["lm_head.weight"])
        last.add_(1)
        tokens.index_copy_(1, last, logits.argmax(-1, keepdim=True))

    _repeat(step, count, use_graph)
    return tokens


def _repeat(step: Callable[[], None], count: int, use_graph: bool) -> None:
    if not use_graph or count < 3:
        for _ in range(count):
            step()
        return
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for _ in range(count - 2):
        graph.replay()


@torch.no_grad()
def acceptance(
    model: Model, net: DraftNet, prompts: Tensor, count: int, use_graph: bool
) -> dict[str, Any]:
    """Greedy speculative decoding of ``prompts [B, P]``, ``count`` tokens each.

    Returns the mean tokens per target step (bonus included), and how often position i was accepted
    given that it was reached.
    """
    first, block = prompts.shape[1], net.config.block
    tokens = continued(model, prompts, count, use_graph)
    trace = Trace(taps=net.config.target_layers)
    model.hidden(tokens, trace)
    anchors = torch.arange(first, tokens.shape[1] - block, device=tokens.device)
    spans = anchors.expand(len(tokens), -1)
    drafts = net.propose(tapped_rows(trace, tokens), spans, tokens[:, anchors])
    wanted = tokens[:, anchors[:, None] + 1 + torch.arange(block, device=tokens.device)]
    accepted = (drafts == wanted).int().cumprod(-1).sum(-1).cpu().tolist()
    runs = [n for row in accepted for n in walk(row)]
    reached = [sum(n >= i for n in runs) for i in range(block + 1)]
    return {
        "tokens_per_step": 1 + sum(runs) / len(runs),
        "steps": len(runs),
        "accepted_at": [b / a for a, b in pairwise(reached) if a],
    }


def walk(accepted: list[int]) -> list[int]:
    """The accepted counts of the steps that decoding takes: each starts behind the last's bonus."""
    runs: list[int] = []
    at = 0
    while at < len(accepted):
        runs.append(accepted[at])
        at += accepted[at] + 1
    return runs
