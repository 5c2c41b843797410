"""Meanings of the attn_res, moe and mx ops."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from k3compiler.dialects import attn_res, moe, mx
from k3compiler.dtypes import dequantize_mxfp8, quantize_mxfp8
from k3compiler.ir.dialect import optional
from k3compiler.package.expr import cdiv
from k3compiler.passes.meaning.graph_ops import activation_of, expert_matrices, route_scores
from k3compiler.passes.meaning.step import Step
from k3compiler.reference.activations import sigmoid
from k3compiler.reference.attn_res import attn_res_mix
from k3compiler.reference.norms import rms_norm

Array = NDArray[Any]


def mix_norm(
    op: Any, step: Step, running: Array, out_norm: Array, snapshots: list[Array],
    query: Array | None, norm: Array | None, addend: Array | None,
) -> tuple[Array, Array]:  # fmt: skip
    new_sum = running if addend is None else running + addend
    mix, eps = new_sum, optional(op, "eps")
    if norm is not None and query is not None and eps is not None:
        mix = attn_res_mix([*snapshots, new_sum], norm, query, eps)
    return new_sum, rms_norm(mix, out_norm, op.out_eps.value)


def _local(op: Any, step: Step, ids: Array) -> Array:
    """Local expert of every pair, -1 for another rank's."""
    local = ids - step.bound(optional(op, "first_expert"))
    return np.where((local >= 0) & (local < op.num_experts.value), local, -1)


def sort(op: Any, step: Step, ids: Array) -> tuple[Array, Array, Array]:
    rows, count = op.block_rows.value, op.num_experts.value
    local = _local(op, step, ids).reshape(-1)
    bound = cdiv(ids.size, rows) + count
    pairs = np.full((bound, rows), -1, np.int32)
    block_expert, used = np.zeros(bound, np.int32), 0
    for expert in range(count):
        mine = np.nonzero(local == expert)[0]
        for first in range(0, len(mine), rows):
            part = mine[first : first + rows]
            pairs[used, : len(part)] = part
            block_expert[used] = expert
            used += 1
    return pairs.reshape(-1), block_expert, np.array([used], np.int32)


def _blocks(op: Any, pairs: Array, block_expert: Array, num_blocks: Array) -> Any:
    """``(sorted rows that hold a pair, their pairs, expert)`` of every block in use."""
    rows = op.block_rows.value
    for block in range(int(num_blocks[0])):
        place = np.arange(block * rows, (block + 1) * rows)
        place = place[pairs[place] >= 0]
        yield place, pairs[place], int(block_expert[block])


def _activations(x: Array, x_scale: Array | None, dtype: Any) -> Array:
    return x if x_scale is None else dequantize_mxfp8(x, x_scale).astype(dtype)


def gate_up(
    op: Any, step: Step, x: Array, pairs: Array, block_expert: Array, num_blocks: Array,
    w1: Array, w3: Array, x_scale: Array | None, s1: Array | None, s3: Array | None,
) -> Array:  # fmt: skip
    act, x = activation_of(op), _activations(x, x_scale, np.float64)
    gate, up = (expert_matrices(w, s, x.dtype) for w, s in ((w1, s1), (w3, s3)))
    h = np.full((len(pairs), w1.shape[1]), np.nan, x.dtype)
    for place, pair, expert in _blocks(op, pairs, block_expert, num_blocks):
        rows = x[pair // op.top_k.value]
        h[place] = act(rows @ gate[expert].T, rows @ up[expert].T)
    return _rounded(h) if optional(op, "rounds") else h


def gate_up_mx(
    op: Any, step: Step, x: Array, pairs: Array, block_expert: Array, num_blocks: Array,
    w1: Array, w3: Array, x_scale: Array, s1: Array, s3: Array,
) -> tuple[Array, Array]:  # fmt: skip
    h = gate_up(op, step, x, pairs, block_expert, num_blocks, w1, w3, x_scale, s1, s3)
    return quantize_mxfp8(h)


def down(
    op: Any, step: Step, x: Array, pairs: Array, block_expert: Array, num_blocks: Array,
    weights: Array, w2: Array, x_scale: Array | None, s2: Array | None,
) -> Array:  # fmt: skip
    x = _activations(x, x_scale, np.float64)
    matrices = expert_matrices(w2, s2, x.dtype)
    y = np.full((weights.size, w2.shape[1]), np.nan, x.dtype)
    for place, pair, expert in _blocks(op, pairs, block_expert, num_blocks):
        y[pair] = weights.reshape(-1)[pair, None] * (x[place] @ matrices[expert].T)
    return y


def combine(op: Any, step: Step, y: Array, ids: Array, norm: Array | None) -> Array:
    by_pair = y.reshape(*ids.shape, -1)
    kept = np.where((_local(op, step, ids) >= 0)[..., None], by_pair, 0)
    r = kept.sum(axis=1)
    eps = optional(op, "eps")
    return r if norm is None or eps is None else rms_norm(r, norm, eps)


def _rounded(x: Array) -> Array:
    return dequantize_mxfp8(*quantize_mxfp8(x)).astype(x.dtype)


def quantize(op: Any, step: Step, x: Array) -> tuple[Array, Array]:
    """Rows that hold no pair are NaN before and after; they must not disturb the others."""
    return quantize_mxfp8(x)


def route(op: Any, step: Step, logits: Array, bias: Array) -> tuple[Array, ...]:
    weights, ids = route_scores(op, sigmoid(logits), bias)
    return weights, ids, *sort(op, step, ids)


MEANINGS: dict[Any, Any] = {
    attn_res.MixNorm: mix_norm,
    moe.RouteTopk: lambda op, step, logits, bias: route_scores(op, sigmoid(logits), bias),
    moe.Sort: sort,
    moe.Route: route,
    moe.GateUp: gate_up,
    moe.GateUpMx: gate_up_mx,
    moe.Down: down,
    moe.Combine: combine,
    mx.Quantize: quantize,
    mx.Round: lambda op, step, x: _rounded(x),
}
