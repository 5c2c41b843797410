"""KDA in chunks of 64 tokens, differentiable (spec 3.2 to 3.7).

Layouts: a chunk tensor is ``[N, B, H, C, K]`` with the chunk index N outermost, so that the scan
over chunks reads one contiguous block a step. Exponents: a 64-token chunk spans up to 320 in the
bounded gate's log, too much for one factorisation, so rows are referred to the start of their
16-row block: row factors are at most 1, column factors at most e^80.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional as F

from examples.train.compiled import fused
from k3compiler.config import L2_NORM_EPS

CHUNK = 64
BLOCK = 16
MAX_EXPONENT = 80.0


class UnitLowerInverse(Function):
    """``(I + a)⁻¹`` for strictly lower ``a [..., 64, 64]``, in the type of ``a``.

    The 16-row diagonal blocks by their (exact) Neumann product, then two merges; the backward pass
    is ``-tril(Tᵀ dT Tᵀ)``.
    """

    @staticmethod
    def forward(ctx: Any, a: Tensor) -> Tensor:
        inverse = unit_lower_inverse(a)
        ctx.save_for_backward(inverse)
        return inverse

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (inverse,) = ctx.saved_tensors
        transposed = inverse.mT
        return -(transposed @ grads[0] @ transposed).tril(-1)


def unit_lower_inverse(a: Tensor) -> Tensor:
    """``(I + a)⁻¹`` without a graph: ``a [..., C, C]`` strictly lower, C a power of two times 16."""
    size = a.shape[-1]
    flat = a.reshape(-1, size, size)
    blocks = flat.reshape(-1, size // BLOCK, BLOCK, size // BLOCK, BLOCK)
    diagonal = blocks.diagonal(dim1=1, dim2=3).permute(0, 3, 1, 2).reshape(-1, BLOCK, BLOCK)
    inverse = _neumann(diagonal)
    width = BLOCK
    while width < size:
        inverse = _merge(inverse.reshape(len(flat), -1, width, width), flat, width)
        width *= 2
    return inverse.reshape(a.shape)


def _neumann(a: Tensor) -> Tensor:
    """``(I - a)(I + a²)(I + a⁴)(I + a⁸)``: exact because a¹⁶ = 0."""
    square = torch.bmm(a, a)
    result = torch.baddbmm(torch.eye(BLOCK, dtype=a.dtype, device=a.device) - a, -a, square)
    result = result + square
    for _ in range(2):
        square = torch.bmm(square, square)
        result = torch.baddbmm(result, result, square)
    return result


def _merge(inverse: Tensor, a: Tensor, width: int) -> Tensor:
    """Pairs of inverted diagonal blocks to blocks twice as wide."""
    count, pairs = len(a), a.shape[-1] // (2 * width)
    first, second = inverse[:, 0::2], inverse[:, 1::2]
    wide = a.reshape(count, pairs, 2 * width, pairs, 2 * width)
    wide = wide.diagonal(dim1=1, dim2=3).permute(0, 3, 1, 2)
    below = -(second @ wide[..., width:, :width] @ first)
    result = torch.zeros(
        (count, pairs, 2 * width, 2 * width), dtype=inverse.dtype, device=inverse.device
    )
    result[..., :width, :width] = first
    result[..., width:, width:] = second
    result[..., width:, :width] = below
    return result


class AffineScan(Function):
    """States before each chunk: ``S_0 = 0``, ``S_{n+1} = X_n S_n + B_n``, all float32.

    Shapes: ``x [N, M, K, K]``, ``b [N, M, K, V]`` -> ``[N, M, K, V]``.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, b: Tensor) -> Tensor:
        states = torch.zeros_like(b)
        for n in range(len(b) - 1):
            torch.baddbmm(b[n], x[n], states[n], out=states[n + 1])
        ctx.save_for_backward(x, states)
        return states

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        x, states = ctx.saved_tensors
        upstream = grads[0]
        after = torch.zeros_like(upstream)  # after[n]: gradient of S_{n+1}
        for n in range(len(x) - 1, 0, -1):
            torch.baddbmm(upstream[n], x[n].mT, after[n], out=after[n - 1])
        flat = after.reshape(-1, *after.shape[2:])
        return torch.bmm(flat, states.reshape(flat.shape).mT).reshape(x.shape), after


def kda_chunked(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    """The recurrence of spec 3.4 from a zero state, by chunks.

    Shapes: ``q, k, v [N, B, H, C, K]`` in the computing type (normalised, q scaled),
    ``g [N, B, H, C, K] f32``, ``beta [N, B, H, C] f32`` -> ``[N, B, H, C, V]``.
    """
    shape, num_chunks, size = q.shape, q.shape[0], q.shape[-1]
    q, k, v, g, beta = (x.flatten(0, 2) for x in (q, k, v, g, beta))
    total = torch.matmul(_ones_lower(q.device), g)  # inclusive cumulative sum
    rows, columns, q_decayed, rhs, tail, gamma = chunk_factors(q, k, v, total, beta)
    scores = torch.bmm(rows.flatten(0, 1), columns.flatten(0, 1).mT)
    scores = scores.view(len(q), CHUNK // BLOCK, 2 * BLOCK, CHUNK)
    a, m = masked_scores(scores, beta)
    wu = torch.bmm(UnitLowerInverse.apply(a).to(q.dtype), rhs)
    x, b = state_maps(torch.bmm(tail.mT, wu), gamma)
    per_chunk = (num_chunks, -1, size, size)
    states = AffineScan.apply(x.view(per_chunk), b.view(per_chunk)).flatten(0, 1)
    inner = torch.bmm(m, wu)
    query = q_decayed - inner[..., :size]
    out = torch.baddbmm(inner[..., size:], query, states.to(q.dtype))
    return out.reshape(shape)


def _ones_lower(device: torch.device) -> Tensor:
    return torch.ones(CHUNK, CHUNK, device=device).tril()


@fused
def chunk_factors(
    q: Tensor, k: Tensor, v: Tensor, total: Tensor, beta: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Every product of q, k, v with a decay that the chunk's matrix products need.

    Shapes (M chunks): ``total [M, 64, K]`` the cumulative log-decay -> ``rows [M, 4, 32, K]`` (16
    rows of k, then of q, referred to their block's start), ``columns [M, 4, 64, K]`` (k against
    each block's start), ``q_decayed, tail [M, 64, K]``, ``rhs [M, 64, 2K]`` (``β k e^G | β v``),
    ``gamma [M, K] f32``.
    """
    kind = q.dtype
    blocks = (len(q), CHUNK // BLOCK, BLOCK, q.shape[-1])
    kf, qf = k.float(), q.float()
    grouped = total.reshape(blocks)
    start = F.pad(grouped[..., :-1, -1, :], (0, 0, 1, 0))  # G before each block, 0 for the first
    decay = torch.exp(grouped - start[..., None, :])
    rows = torch.cat([kf.reshape(blocks) * decay, qf.reshape(blocks) * decay], dim=-2)
    exponent = start[..., :, None, :] - total[..., None, :, :]
    row_block = torch.arange(CHUNK // BLOCK, device=q.device)[:, None]
    is_known = torch.arange(CHUNK, device=q.device)[None, :] < BLOCK * (row_block + 1)
    columns = kf[..., None, :, :] * torch.exp(exponent.clamp(max=MAX_EXPONENT))
    columns = torch.where(is_known[..., None], columns, torch.zeros_like(columns))
    from_start = torch.exp(total)
    rhs = torch.cat([kf * from_start, v.float()], dim=-1) * beta[..., None]
    last = total[..., -1:, :]
    tail = kf * torch.exp(last - total)
    gamma = torch.exp(last[..., 0, :])
    q_decayed = qf * from_start
    return rows.to(kind), columns.to(kind), q_decayed.to(kind), rhs.to(kind), tail.to(kind), gamma


@fused
def masked_scores(scores: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """``A`` (float32, strictly lower, times β) and ``M`` (lower) from ``[M, 4, 32, 64]``."""
    square = (*beta.shape, CHUNK)
    row = torch.arange(CHUNK, device=beta.device)[:, None]
    column = torch.arange(CHUNK, device=beta.device)[None, :]
    kk = scores[..., :BLOCK, :].reshape(square)
    qk = scores[..., BLOCK:, :].reshape(square)
    a = torch.where(row > column, kk.float() * beta[..., None], 0.0)
    return a, torch.where(row >= column, qk, torch.zeros_like(qk))


@fused
def state_maps(update: Tensor, gamma: Tensor) -> tuple[Tensor, Tensor]:
    """``X = diag(γ) - tailᵀ w`` and ``B = tailᵀ u``, float32, from ``[M, K, 2K]``."""
    size = gamma.shape[-1]
    wide = update.float()
    return torch.diag_embed(gamma) - wide[..., :size], wide[..., size:].contiguous()


@fused
def kda_inputs(
    u: Tensor, f: Tensor, conv: Tensor, a_log: Tensor, dt_bias: Tensor, bound: float
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Convolution, SiLU, L2 norms and gates, in chunk layout.

    Shapes: ``u [B, T, >= 3P + H]`` (columns q|k|v|β), ``f [B, T, P]``, ``conv [3P, 4] f32``,
    ``a_log [H]``, ``dt_bias [P]`` -> ``q, k, v, g [N, B, H, C, K]``, ``beta [N, B, H, C]``.
    """
    width, heads = f.shape[-1], a_log.shape[0]
    size = width // heads
    raw = u[..., : 3 * width].float()
    taps = conv.shape[1]
    padded = F.pad(raw, (0, 0, taps - 1, 0))
    y = sum(conv[:, j] * padded[:, j : j + raw.shape[1]] for j in range(taps))
    assert isinstance(y, Tensor)
    y = y * torch.sigmoid(y)
    q, k, v = (_to_chunks(y[..., n * width : (n + 1) * width], heads) for n in range(3))
    q = q * torch.rsqrt((q * q).sum(-1, keepdim=True) + L2_NORM_EPS) * size**-0.5
    k = k * torch.rsqrt((k * k).sum(-1, keepdim=True) + L2_NORM_EPS)
    rate = torch.exp(a_log)[:, None, None]
    z = _to_chunks(f.float() + dt_bias, heads)
    g = bound * torch.sigmoid(rate * z)
    beta = torch.sigmoid(u[..., 3 * width : 3 * width + heads].float())
    kind = f.dtype
    return (
        q.to(kind).contiguous(),
        k.to(kind).contiguous(),
        v.to(kind).contiguous(),
        g.contiguous(),
        _to_chunks(beta, heads)[..., 0].contiguous(),
    )


def _to_chunks(x: Tensor, heads: int) -> Tensor:
    """``[B, T, H*K]`` -> ``[N, B, H, C, K]`` (a view)."""
    batch, tokens, width = x.shape
    chunks = x.reshape(batch, tokens // CHUNK, CHUNK, heads, width // heads)
    return chunks.permute(1, 0, 3, 2, 4)


@fused
def kda_outputs(o: Tensor, gate: Tensor, norm: Tensor, eps: float) -> Tensor:
    """Norm per head, then the gate: ``o [N, B, H, C, V]``, ``gate [B, T, P]`` -> ``[B, T, P]``."""
    x = o.float()
    x = x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps) * norm
    flat = x.permute(1, 0, 3, 2, 4).reshape(gate.shape)
    return (flat * torch.sigmoid(gate.float())).to(gate.dtype)
