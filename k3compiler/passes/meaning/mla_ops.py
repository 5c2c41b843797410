"""Meanings of the mla ops."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from k3compiler.dialects import mla as dialect
from k3compiler.passes.meaning.graph_ops import flat, heads, write_rows
from k3compiler.passes.meaning.step import Step
from k3compiler.reference import mla
from k3compiler.reference.activations import sigmoid

Array = NDArray[Any]


def _gated(o: Array, gate: Array | None) -> Array:
    return o if gate is None else o * sigmoid(gate)


def latent_write(op: Any, step: Step, kv_a: Array, w: Array, cache: Array, batch: None) -> Array:
    return write_rows(step, cache, mla.mla_cache_rows(kv_a, w, op.eps.value))


def expand(op: Any, step: Step, cache: Array, kv_b: Array, batch: None) -> tuple[Array, Array]:
    seq, position = step["kv_seq"], step["kv_pos"]
    page_tokens, rank = cache.shape[1], kv_b.shape[1]
    page = step["page_table"][seq, position // page_tokens]
    rows = cache[page, position % page_tokens]
    return rows[:, :rank] @ kv_b.T, rows[:, rank:]


def prefill(
    op: Any, step: Step, q: Array, kv: Array, rope: Array, batch: None, gate: Array | None
) -> Array:
    n, nope = op.num_heads.value, op.nope_dim.value
    query, expanded = heads(q, n), heads(kv, n)
    keys = np.concatenate([expanded[:, :, :nope], np.repeat(rope[:, None], n, axis=1)], axis=2)
    o = np.empty((len(q), n, op.v_dim.value), q.dtype)
    for seq in range(step.num_sequences):
        rows = step.rows(seq)
        cached = slice(int(step["kv_start"][seq]), int(step["kv_start"][seq + 1]))
        scores = np.einsum("thd,nhd->htn", query[rows], keys[cached]) * op.scale.value
        weights = mla.causal_weights(scores, int(step["seq_ctx"][seq]))
        o[rows] = np.einsum("htn,nhd->thd", weights, expanded[cached][:, :, nope:])
    return _gated(flat(o), gate)


def absorb_q(op: Any, step: Step, q: Array, kv_b: Array) -> Array:
    n = op.num_heads.value
    w_uk, _ = mla.split_kv_b(kv_b, n, op.nope_dim.value)
    return flat(mla.mla_absorb_query(heads(q, n), w_uk))


def decode(op: Any, step: Step, q: Array, cache: Array, batch: None) -> tuple[Array, Array]:
    """Splits take equal runs of pages; how the context is cut does not show after the merge."""
    n, splits = op.num_heads.value, op.num_splits.value
    rank = cache.shape[2] - op.rope_dim.value
    partial = np.zeros((len(q), splits, n, rank), q.dtype)
    lse = np.full((len(q), splits, n), -np.inf, q.dtype)
    query = heads(q, n)
    for seq in range(step.num_sequences):
        context = step.context(cache, seq)
        for split, part in enumerate(np.array_split(context, splits)):
            if len(part):
                scores = query[seq] @ part.T * op.scale.value
                top = scores.max(axis=1)
                weight = np.exp(scores - top[:, None])
                partial[seq, split] = weight @ part[:, :rank] / weight.sum(1)[:, None]
                lse[seq, split] = top + np.log(weight.sum(axis=1))
    return partial, lse


def merge(op: Any, step: Step, partial: Array, lse: Array) -> Array:
    weight = np.exp(lse - lse.max(axis=1, keepdims=True))
    weight /= weight.sum(axis=1, keepdims=True)
    return flat(np.einsum("sph,sphr->shr", weight, partial))


def value_up(op: Any, step: Step, o_latent: Array, kv_b: Array, gate: Array | None) -> Array:
    n = op.num_heads.value
    per_head = kv_b.reshape(n, -1, kv_b.shape[1])
    w_uv = per_head[:, per_head.shape[1] - op.v_dim.value :]
    return _gated(flat(np.einsum("shr,hdr->shd", heads(o_latent, n), w_uv)), gate)


MEANINGS: dict[Any, Any] = {
    dialect.LatentWrite: latent_write,
    dialect.Expand: expand,
    dialect.Prefill: prefill,
    dialect.AbsorbQ: absorb_q,
    dialect.Decode: decode,
    dialect.Merge: merge,
    dialect.ValueUp: value_up,
}
