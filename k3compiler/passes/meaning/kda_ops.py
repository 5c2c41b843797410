"""Meanings of the kda ops."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from k3compiler.dialects import kda as dialect
from k3compiler.ir.dialect import optional
from k3compiler.passes.meaning.graph_ops import flat, heads
from k3compiler.passes.meaning.step import Step
from k3compiler.reference import kda
from k3compiler.reference.activations import sigmoid, silu
from k3compiler.reference.kda_chunk import (
    PreparedChunks,
    SegmentMaps,
    kda_output,
    kda_prepare,
    kda_scan,
    kda_segment_maps,
)
from k3compiler.reference.norms import gated_rms_norm, l2_normalize

Array = NDArray[Any]


def _chunk_rows(step: Step) -> list[slice]:
    bounds = zip(step["chunk_start"], step["chunk_end"], strict=True)
    return [slice(int(a), int(b)) for a, b in bounds]


def _convolved(step: Step, qkv: Array, w: Array, state: Array) -> Array:
    """SiLU of the convolution."""
    y = np.empty_like(qkv)
    for seq in range(step.num_sequences):
        rows = step.rows(seq)
        y[rows] = kda.short_conv(qkv[rows], w, step.initial(state, seq))[0]
    return silu(y)


def _token_inputs(
    op: Any, step: Step, qkv: Array, f: Array, beta: Array, w: Array, state: Array, a_log: Array,
    dt_bias: Array,
) -> tuple[Array, ...]:  # fmt: skip
    """q, k, v, g (not cumulative), beta of every token, by head."""
    n, width = op.num_heads.value, f.shape[1]
    q, k, v = np.split(_convolved(step, qkv, w, state), [width, 2 * width], axis=1)
    eps = op.l2_eps.value
    g = kda.kda_gate(heads(f, n), a_log, dt_bias, optional(op, "lower_bound"))
    q_hat = l2_normalize(heads(q, n), eps) * op.q_scale.value
    return q_hat, l2_normalize(heads(k, n), eps), heads(v, n), g, sigmoid(beta)


def inputs(
    op: Any, step: Step, qkv: Array, f: Array, beta: Array, w: Array, state: Array, a_log: Array,
    dt_bias: Array, batch: None,
) -> tuple[Array, ...]:  # fmt: skip
    q, k, v, g, b = _token_inputs(op, step, qkv, f, beta, w, state, a_log, dt_bias)
    if op.chunk_tokens.value > 1:
        for rows in _chunk_rows(step):
            g[rows] = np.cumsum(g[rows], axis=0)
    return flat(q), flat(k), flat(v), flat(g), b


def conv_state(op: Any, step: Step, qkv: Array, state: Array, batch: None) -> Array:
    """The last inputs of every sequence, and at every checkpoint."""
    new_state = state.copy()
    for seq in range(step.num_sequences):
        window = step.initial(state, seq)
        for rows, slot in step.chunks(seq):
            window = np.concatenate([window, qkv[rows]])[-len(window) :]
            if slot is not None:
                new_state[slot] = window
        new_state[step["seq_slot"][seq]] = window
    return new_state


def prepare(
    op: Any, step: Step, q: Array, k: Array, v: Array, g: Array, beta: Array, batch: None
) -> tuple[Array, ...]:
    single = g.copy()
    for rows in _chunk_rows(step):
        single[rows] = np.diff(g[rows], axis=0, prepend=0)
    n = op.num_heads.value
    q, k, v, single = (heads(x, n) for x in (q, k, v, single))
    tables = (step["chunk_start"], step["chunk_end"])
    return kda_prepare(q, k, v, single, beta, *tables, op.chunk_tokens.value)


def segment_maps(
    op: Any, step: Step, w: Array, u: Array, k_tail: Array, gamma: Array, batch: None
) -> tuple[Array, ...]:
    return kda_segment_maps(PreparedChunks(w, u, w, k_tail, w, gamma), step["seg_chunk"])


def scan(op: Any, step: Step, gamma: Array, r: Array, b: Array, state: Array, batch: None) -> Array:
    maps = SegmentMaps(gamma, r, b)
    initial = np.stack([step.initial(state, seq) for seq in range(step.num_sequences)])
    return kda_scan(maps, initial, step["seq_seg"])[0]


def output(
    op: Any, step: Step, w: Array, u: Array, q_decayed: Array, k_tail: Array, m: Array, gamma: Array,
    starts: Array, state: Array, gate: Array, norm_w: Array, batch: None,
) -> tuple[Array, Array]:  # fmt: skip
    prepared = PreparedChunks(w, u, q_decayed, k_tail, m, gamma)
    tables = (step["seg_chunk"], step["chunk_start"], step["chunk_end"])
    o, after = kda_output(prepared, starts, *tables, len(gate))
    new_state = state.copy()
    kept = step["chunk_ckpt"] >= 0
    new_state[step["chunk_ckpt"][kept]] = after[kept]
    new_state[step["seq_slot"]] = after[step["seg_chunk"][step["seq_seg"][1:]] - 1]
    return flat(gated_rms_norm(o, norm_w, heads(gate, w.shape[1]), op.eps.value)), new_state


def decode(
    op: Any, step: Step, qkv: Array, f: Array, beta: Array, gate: Array, w: Array, conv: Array,
    a_log: Array, dt_bias: Array, norm_w: Array, state: Array, batch: None, f_w: Array | None,
) -> tuple[Array, Array, Array]:  # fmt: skip
    f = f if f_w is None else f @ f_w.T
    q, k, v, g, b = _token_inputs(op, step, qkv, f, beta, w, conv, a_log, dt_bias)
    o, new_state = np.empty_like(v), state.copy()
    for seq in range(step.num_sequences):
        r = step.rows(seq)
        start = step.initial(state, seq)
        o[r], final = kda.kda_recurrence(q[r], k[r], v[r], g[r], b[r], start)
        new_state[step["seq_slot"][seq]] = final
    y = gated_rms_norm(o, norm_w, heads(gate, op.num_heads.value), op.norm_eps.value)
    return flat(y), conv_state(op, step, qkv, conv, None), new_state


MEANINGS: dict[Any, Any] = {
    dialect.Inputs: inputs,
    dialect.ConvState: conv_state,
    dialect.Prepare: prepare,
    dialect.SegmentMaps: segment_maps,
    dialect.Scan: scan,
    dialect.Output: output,
    dialect.Decode: decode,
}
