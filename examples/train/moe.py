"""LatentMoE for training: sort by expert, pad to blocks of rows, one batched product per matrix.

Every shape is fixed by the number of tokens, so nothing waits for the device; every sum runs in a
fixed order, so a seed gives the same run.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from examples.train.compiled import fused
from k3compiler.config import MX_GROUP

ROWS = 128  # rows per expert block
E2M1_MAX = 6.0


class Plan(NamedTuple):
    """Where every (token, choice) lies among the padded expert rows.

    ``source [R]``: its index in the flat ``[T*k]`` choices (0 where padding); ``is_used [R]``;
    ``place [T*k]``: the inverse; ``expert [R / ROWS]``: each block's expert; ``load [E]``.
    """

    source: Tensor
    is_used: Tensor
    place: Tensor
    expert: Tensor
    load: Tensor


def make_plan(choices: Tensor, num_experts: int) -> Plan:
    """``choices [T, k]`` expert ids."""
    flat = choices.reshape(-1)
    device, count = flat.device, len(flat)
    blocks = -(-count // ROWS) + num_experts
    key, order = torch.sort(flat.to(torch.uint8), stable=True)
    experts = torch.arange(num_experts + 1, device=device)
    start = torch.searchsorted(key.to(torch.int32), experts.to(torch.int32))
    load = start[1:] - start[:-1]
    padded_end = torch.cumsum((load + ROWS - 1) // ROWS, 0)
    padded_start = (padded_end - (load + ROWS - 1) // ROWS) * ROWS
    shift = padded_start - start[:-1]
    target = torch.arange(count, device=device) + shift[key.long()]
    source = torch.zeros(blocks * ROWS, dtype=torch.long, device=device)
    is_used = torch.zeros(blocks * ROWS, dtype=torch.bool, device=device)
    source[target] = order
    is_used.index_fill_(0, target, True)
    place = torch.empty(count, dtype=torch.long, device=device)
    place[order] = target
    expert = torch.searchsorted(padded_end, torch.arange(blocks, device=device), right=True)
    return Plan(source, is_used, place, expert.clamp(max=num_experts - 1), load)


class Spread(Function):
    """Rows of tokens to expert rows: ``z [T, L]`` -> ``[R, L]``; padding repeats some row."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, source: Tensor, place: Tensor, top_k: int) -> Tensor:
        ctx.save_for_backward(place)
        ctx.top_k = top_k
        return z[source // top_k]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        (place,) = ctx.saved_tensors
        return gather_sum(grads[0], place.reshape(-1, ctx.top_k)), None, None, None


class Collect(Function):
    """The sum of every token's expert rows: ``y [R, L]`` -> ``[T, L]``."""

    @staticmethod
    def forward(
        ctx: Any, y: Tensor, source: Tensor, is_used: Tensor, place: Tensor, top_k: int
    ) -> Tensor:
        ctx.save_for_backward(source, is_used)
        ctx.top_k = top_k
        return gather_sum(y, place.reshape(-1, top_k))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None, None]:
        source, is_used = ctx.saved_tensors
        return gather_used(grads[0], source // ctx.top_k, is_used), None, None, None, None


@fused
def gather_sum(rows: Tensor, place: Tensor) -> Tensor:
    """``Σ_j rows[place[t, j]]`` in float32, rounded once: -> ``[T, L]``."""
    return rows[place].float().sum(1).to(rows.dtype)


@fused
def gather_used(rows: Tensor, index: Tensor, is_used: Tensor) -> Tensor:
    """``rows[index]``, zero where the slot is padding."""
    return torch.where(is_used[:, None], rows[index], torch.zeros_like(rows[:1]))


class SlotWeights(Function):
    """Each slot's routing weight, 0 for padding: ``[T, k]`` -> ``[R]``."""

    @staticmethod
    def forward(
        ctx: Any, weights: Tensor, source: Tensor, is_used: Tensor, place: Tensor
    ) -> Tensor:
        ctx.save_for_backward(place)
        ctx.shape = weights.shape
        return torch.where(is_used, weights.reshape(-1)[source], 0.0)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        (place,) = ctx.saved_tensors
        return grads[0][place].reshape(ctx.shape), None, None, None


class ExpertLinear(Function):
    """Row blocks times their expert's matrix: ``x [N, ROWS, in]``, ``w [E, out, in]``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, expert: Tensor) -> Tensor:
        ctx.save_for_backward(x, w, expert)
        return torch.bmm(x, w[expert].mT)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        x, w, expert = ctx.saved_tensors
        dy = grads[0].contiguous()
        dx = torch.bmm(dy, w[expert])
        per_block = torch.bmm(dy.mT, x).reshape(len(x), -1)
        is_mine = expert[None, :] == torch.arange(len(w), device=w.device)[:, None]
        dw = (is_mine.to(per_block.dtype) @ per_block).reshape(w.shape)
        return dx, dw, None


@fused
def situ(gate_up: Tensor, beta: float, linear_beta: float) -> Tensor:
    """SiTU of ``[..., 2F]`` (gate, then up): -> ``[..., F]`` (spec 5.3)."""
    return _situ(gate_up, beta, linear_beta).to(gate_up.dtype)


@fused
def weighted_situ(gate_up: Tensor, weight: Tensor, beta: float, linear_beta: float) -> Tensor:
    """SiTU times the slot's routing weight, which commutes with ``w2``: ``weight [...]``."""
    return (_situ(gate_up, beta, linear_beta) * weight[..., None]).to(gate_up.dtype)


def _situ(gate_up: Tensor, beta: float, linear_beta: float) -> Tensor:
    g, u = gate_up.float().chunk(2, dim=-1)
    capped = beta * torch.tanh(g / beta) * torch.sigmoid(g)
    return capped * (linear_beta * torch.tanh(u / linear_beta))


@fused
def fake_mxfp4(w: Tensor) -> Tensor:
    """``w [..., in]`` rounded to what MXFP4 stores (spec 6), float32."""
    groups = w.reshape(*w.shape[:-1], -1, MX_GROUP)
    peak = groups.abs().amax(-1, keepdim=True).clamp(min=2.0**-100)
    exponent = ((peak.view(torch.int32) >> 23) & 0xFF) - 2  # biased, of the group's scale
    scale = (exponent << 23).view(torch.float32)
    x = groups / scale
    size = x.abs()
    step = torch.where(size < 2, 0.5, torch.where(size < 4, 1.0, 2.0))
    rounded = (torch.round(size / step) * step).clamp(max=E2M1_MAX)
    return (torch.copysign(rounded, x) * scale).reshape(w.shape)


def route(
    logits: Tensor, bias: Tensor, top_k: int, renormalize: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Sigmoid scores, biased choice, unbiased weights (spec 5.1).

    Shapes: ``logits [T, E] f32`` -> ``ids [T, k]``, ``weights [T, k]``, ``scores [T, E]``.
    """
    scores = torch.sigmoid(logits)
    ids = torch.topk((scores + bias).detach(), top_k, dim=1).indices
    chosen = scores.gather(1, ids)
    weights = chosen / (chosen.sum(1, keepdim=True) + 1e-20) if renormalize else chosen
    return ids, weights, scores


@torch.no_grad()
def balanced_bias(scores: Tensor, bias: Tensor, top_k: int) -> Tensor:
    """The bias that score quantiles ask for: each expert would be chosen for k/E of the tokens.

    Expert e enters a token's choice when ``s_e + b_e`` passes the k-th best of the others; so
    ``-b_e`` is the ``1 - k/E`` quantile of ``s_e`` minus that threshold. Shapes: ``scores [T, E]``
    -> ``[E]``, mean 0.
    """
    tokens, experts = scores.shape
    biased = scores + bias
    best = torch.topk(biased, top_k + 1, dim=1).values
    is_chosen = biased >= best[:, top_k - 1 : top_k]
    threshold = torch.where(is_chosen, best[:, top_k : top_k + 1], best[:, top_k - 1 : top_k])
    margin = (scores - threshold).T.contiguous()
    rank = int(tokens * (1 - top_k / experts)) + 1
    wanted = -torch.kthvalue(margin, rank, dim=1).values
    return wanted - wanted.mean()
