"""Meanings of the k3 ops."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from k3compiler.dialects import k3
from k3compiler.dtypes import unpack_mxfp4
from k3compiler.ir.dialect import optional, shape
from k3compiler.passes.meaning.step import Step
from k3compiler.reference import kda, mla, moe
from k3compiler.reference.activations import GatedActivation, sigmoid, silu, situ, swiglu
from k3compiler.reference.attn_res import attn_res_mix
from k3compiler.reference.norms import gated_rms_norm, l2_normalize, rms_norm

Array = NDArray[Any]


def heads(x: Array, num_heads: int) -> Array:
    """``[T, H*D]`` as ``[T, H, D]``."""
    return x.reshape(len(x), num_heads, -1)


def flat(x: Array) -> Array:
    """``[T, H, D]`` as ``[T, H*D]``."""
    return x.reshape(len(x), -1)


def activation_of(op: Any) -> GatedActivation:
    """The gated activation that an op's attributes name."""
    if op.activation.value == "silu":
        return swiglu
    beta, cap = optional(op, "beta"), optional(op, "linear_beta")
    assert beta is not None
    return lambda g, u: situ(g, u, beta, cap)


def step_metadata(op: Any, step: Step, tokens: Array, batch: None) -> tuple[Array, None]:
    return tokens, batch


def embed(op: Any, step: Step, tokens: Array, table: Array) -> Array:
    row = tokens - step.bound(optional(op, "first_row"))
    inside = (row >= 0) & (row < len(table))
    return np.where(inside[:, None], table[np.where(inside, row, 0)], 0)


def linear(op: Any, step: Step, x: Array, w: Array, residual: Array | None) -> Array:
    return x @ w.T if residual is None else x @ w.T + residual


def gated_linear(op: Any, step: Step, x: Array, w: Array) -> Array:
    gate, up = np.split(x @ w.T, 2, axis=1)
    return activation_of(op)(gate, up)


def columns(op: Any, step: Step, x: Array) -> Array:
    first = op.offset.value
    return x[:, first : first + op.y.type.shape[1]]


def sample(op: Any, step: Step, logits: Array, batch: None) -> Array:
    assert not step["temperature"].any(), "only greedy rows have one meaning"
    return logits.argmax(axis=1).astype(np.int32)


def short_conv(
    op: Any, step: Step, u: Array, w: Array, state: Array, batch: None
) -> tuple[Array, Array]:
    """Sequence by sequence; the state is kept at every checkpoint and at the end."""
    y, new_state = np.empty_like(u), state.copy()
    for seq in range(step.num_sequences):
        window = step.initial(state, seq)
        for rows, slot in step.chunks(seq):
            y[rows], window = kda.short_conv(u[rows], w, window)
            if slot is not None:
                new_state[slot] = window
        new_state[step["seq_slot"][seq]] = window
    return y, new_state


def kda_gate(op: Any, step: Step, f: Array, a_log: Array, dt_bias: Array) -> Array:
    bound = optional(op, "lower_bound")
    return flat(kda.kda_gate(heads(f, len(a_log)), a_log, dt_bias, bound))


def kda_recurrence(
    op: Any,
    step: Step,
    q: Array,
    k: Array,
    v: Array,
    g: Array,
    beta: Array,
    state: Array,
    batch: None,
) -> tuple[Array, Array]:
    num_heads = state.shape[1]
    q, k, v, g = (heads(x, num_heads) for x in (q, k, v, g))
    o, new_state = np.empty_like(v), state.copy()
    for seq in range(step.num_sequences):
        current = step.initial(state, seq)
        for rows, slot in step.chunks(seq):
            o[rows], current = kda.kda_recurrence(
                q[rows], k[rows], v[rows], g[rows], beta[rows], current
            )
            if slot is not None:
                new_state[slot] = current
        new_state[step["seq_slot"][seq]] = current
    return flat(o), new_state


def norm(op: Any, step: Step, x: Array, w: Array) -> Array:
    columns = shape(op.y)[-1] or 0
    first = step.bound(optional(op, "part")) * columns
    return rms_norm(x, w, op.eps.value)[:, first : first + columns]


def norm_linear(
    op: Any, step: Step, x: Array, norm_w: Array, w: Array, residual: Array | None
) -> Array:
    first = step.bound(op.part.value) * w.shape[1]
    normed = rms_norm(x, norm_w, op.eps.value)[:, first : first + w.shape[1]]
    return linear(op, step, normed, w, residual)


def gated_norm(op: Any, step: Step, o: Array, gate: Array, w: Array) -> Array:
    n = op.num_heads.value
    return flat(gated_rms_norm(heads(o, n), w, heads(gate, n), op.eps.value))


def l2_norm(op: Any, step: Step, x: Array) -> Array:
    return flat(l2_normalize(heads(x, op.num_heads.value), op.eps.value)) * op.scale.value


def write_rows(step: Step, cache: Array, rows: Array) -> Array:
    """The cache with the new tokens' rows in their pages."""
    new_cache = cache.copy()
    for seq in range(step.num_sequences):
        first = int(step["seq_ctx"][seq])
        mine = rows[step.rows(seq)]
        new_cache[step.cache_places(seq, first, first + len(mine), cache.shape[1])] = mine
    return new_cache


def mla_cache_write(
    op: Any, step: Step, latent: Array, rope: Array, cache: Array, batch: None
) -> Array:
    return write_rows(step, cache, np.concatenate([latent, rope], axis=1))


def mla_attention(op: Any, step: Step, q: Array, kv_b: Array, cache: Array, batch: None) -> Array:
    n = op.num_heads.value
    w_uk, w_uv = mla.split_kv_b(kv_b, n, op.nope_dim.value)
    scale_fix = op.scale.value * np.sqrt(op.nope_dim.value + op.rope_dim.value)
    query, o = heads(q, n) * scale_fix, np.empty((len(q), n, op.v_dim.value), q.dtype)
    for seq in range(step.num_sequences):
        rows, context = step.rows(seq), step.context(cache, seq)
        first = int(step["seq_ctx"][seq])
        o[rows] = mla.mla_attention(query[rows], context, w_uk, w_uv, first)
    return flat(o)


def route_scores(op: Any, scores: Array, bias: Array) -> tuple[Array, Array]:
    """Weights and ids from the scores after their sigmoid."""
    ids = moe.choose_experts(scores, bias, op.top_k.value)
    return moe.weigh_experts(scores, ids, op.renormalize.value, op.scale.value), ids


def expert_matrices(w: Array, scale: Array | None, dtype: Any) -> Array:
    """Stacked expert matrices as numbers."""
    return w if scale is None else unpack_mxfp4(w, scale).astype(dtype)


def experts(
    op: Any, step: Step, x: Array, ids: Array, weights: Array,
    w1: Array, w3: Array, w2: Array, s1: Array | None, s3: Array | None, s2: Array | None,
) -> Array:  # fmt: skip
    gate, up, out = (expert_matrices(w, s, x.dtype) for w, s in ((w1, s1), (w3, s3), (w2, s2)))
    local = ids - step.bound(optional(op, "first_expert"))
    local = np.where((local >= 0) & (local < len(w1)), local, -1)
    return moe.experts(x, local, weights, gate, up, out, activation_of(op))


MEANINGS: dict[Any, Any] = {
    k3.StepMetadata: step_metadata,
    k3.Embed: embed,
    k3.Linear: linear,
    k3.GatedLinear: gated_linear,
    k3.Columns: columns,
    k3.Concat: lambda op, step, parts: np.concatenate(parts, axis=1),
    k3.GatherRows: lambda op, step, x, batch: x[step["logit_rows"]],
    k3.Argmax: lambda op, step, logits: logits.argmax(axis=1).astype(np.int32),
    k3.Sample: sample,
    k3.RmsNorm: norm,
    k3.NormLinear: norm_linear,
    k3.GatedRmsNorm: gated_norm,
    k3.L2Norm: l2_norm,
    k3.Add: lambda op, step, a, b: a + b,
    k3.AttnResMix: lambda op, step, n, p, values: attn_res_mix(values, n, p, op.eps.value),
    k3.Silu: lambda op, step, x: silu(x),
    k3.Sigmoid: lambda op, step, x: sigmoid(x),
    k3.MulSigmoid: lambda op, step, x, gate: x * sigmoid(gate),
    k3.Situ: lambda op, step, g, u: situ(g, u, op.beta.value, optional(op, "linear_beta")),
    k3.SiluMul: lambda op, step, g, u: swiglu(g, u),
    k3.ShortConv: short_conv,
    k3.KdaGate: kda_gate,
    k3.KdaRecurrence: kda_recurrence,
    k3.MlaCacheWrite: mla_cache_write,
    k3.MlaAttention: mla_attention,
    k3.Route: lambda op, step, scores, bias: route_scores(op, scores, bias),
    k3.Experts: experts,
}
