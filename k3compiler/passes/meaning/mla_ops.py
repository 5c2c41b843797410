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
from k3compiler.reference.norms import rms_norm

Array = NDArray[Any]


def _gated(o: Array, gate: Array | None) -> Array:
    return o if gate is None else o * sigmoid(gate)


def latent_write(op: Any, step: Step, kv_a: Array, w: Array, cache: Array, batch: None) -> Array:
    return write_rows(step, cache, mla.mla_cache_rows(kv_a, w, op.eps.value))


def norm_write(
    op: Any, step: Step, q_a: Array, q_w: Array, kv_a: Array, w: Array, cache: Array, batch: None
) -> tuple[Array, Array]:
    return rms_norm(q_a, q_w, op.eps.value), latent_write(op, step, kv_a, w, cache, batch)


def gather(op: Any, step: Step, cache: Array, batch: None) -> Array:
    return np.concatenate([step.context(cache, seq) for seq in range(step.num_sequences)])


def prefill(
    op: Any, step: Step, q: Array, kv: Array, latent: Array, batch: None, gate: Array | None
) -> Array:
    n, nope = op.num_heads.value, op.nope_dim.value
    query, expanded = heads(q, n), heads(kv, n)
    shared = np.repeat(latent[:, None, latent.shape[1] - op.rope_dim.value :], n, axis=1)
    keys = np.concatenate([expanded[:, :, :nope], shared], axis=2)
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
    return flat(mla.mla_absorb_query(heads(q, n), w_uk)[..., : kv_b.shape[1]])


def decode(
    op: Any, step: Step, q_latent: Array, q: Array, cache: Array, batch: None
) -> tuple[Array, Array, Array]:
    """Split by split; what a split without tokens leaves undefined is NaN here."""
    n, rope, size = op.num_heads.value, op.rope_dim.value, op.split_tokens.value
    rank = cache.shape[2] - rope
    query = np.concatenate([heads(q_latent, n), heads(q, n)[..., -rope:]], axis=2)
    splits = int(step["seq_ctx"].max()) // size + 1
    acc = np.full((len(q), splits, n, rank), np.nan, q.dtype)
    top, total = np.full(acc.shape[:3], -np.inf, q.dtype), np.zeros(acc.shape[:3], q.dtype)
    for seq in range(step.num_sequences):
        context = step.context(cache, seq)
        for i, first in enumerate(range(0, len(context), size)):
            part = context[first : first + size]
            scores = query[seq] @ part.T * (op.scale.value * np.log2(np.e))
            top[seq, i] = scores.max(axis=1)
            weight = np.exp2(scores - top[seq, i][:, None])
            total[seq, i] = weight.sum(axis=1)
            acc[seq, i] = weight @ part[:, :rank]
    return acc, top, total


def merge(op: Any, step: Step, acc: Array, top: Array, total: Array, batch: None) -> Array:
    weight = np.exp2(top - top.max(axis=1, keepdims=True))
    used = np.where(total[..., None] > 0, acc, 0)
    o_latent = np.einsum("sph,sphr->shr", weight, used) / (weight * total).sum(axis=1)[..., None]
    return flat(o_latent)


def value_up(op: Any, step: Step, o_latent: Array, kv_b: Array, gate: Array | None) -> Array:
    n = op.num_heads.value
    per_head = kv_b.reshape(n, -1, kv_b.shape[1])
    w_uv = per_head[:, per_head.shape[1] - op.v_dim.value :]
    return _gated(flat(np.einsum("shr,hdr->shd", heads(o_latent, n), w_uv)), gate)


MEANINGS: dict[Any, Any] = {
    dialect.LatentWrite: latent_write,
    dialect.NormWrite: norm_write,
    dialect.Gather: gather,
    dialect.Prefill: prefill,
    dialect.AbsorbQ: absorb_q,
    dialect.Decode: decode,
    dialect.Merge: merge,
    dialect.ValueUp: value_up,
}
