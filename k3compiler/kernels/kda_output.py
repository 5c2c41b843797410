"""KDA prefill, last launch: every segment from its true start, writing outputs and states."""

from __future__ import annotations

from k3compiler.dialects.tile.builder import Program
from k3compiler.dialects.tile.values import dot, rsqrt, sigmoid
from k3compiler.kernels.kda_math import CHUNK_TOKENS as C
from k3compiler.kernels.kda_segments import ChunkStep


def kda_output(
    p: Program,
    *,
    heads: int,
    k_dim: int,
    v_dim: int,
    block_k: int,
    block_v: int,
    eps: float,
    dtype: str,
    in_cols: int,
    gate_offset: int | None,
) -> None:
    """``O = q_decayed S + M U`` chunk by chunk, gated RMSNorm per head; one program per (head, segment).

    The state after a sequence's last segment goes to its slot, the state after chunk n also to slot
    ``chunk_ckpt[n]`` where that is >= 0. ``block_k`` and ``block_v`` cover Dk and Dv. The gate's logits are columns
    ``gate_offset`` of ``x [T, in_cols]``, or (None) a buffer ``gate [T, H*Dv]``.

    Shapes: w, u, k_tail, gamma, q_decayed, m as kda_prepare; seg_state ``[NS, H, Dv, Dk]`` f32; norm_w ``[Dv]`` f32
    -> o ``[T, H*Dv]``, kda_state ``[SLOTS, SLOT_HEADS, Dv, Dk]`` f32. Source: spec 3.5, 3.7.
    """
    workspaces = ChunkStep.declare(p, heads, k_dim, v_dim, dtype)
    q_decayed = p.buffer("q_decayed", dtype, ("NC", heads, C, k_dim))
    m = p.buffer("m", dtype, ("NC", heads, C, C))
    seg_state = p.buffer("seg_state", "f32", ("NS", heads, v_dim, k_dim))
    if gate_offset is None:
        gate = p.buffer("gate", dtype, ("T", heads * v_dim))
    else:
        gate = p.buffer("x", dtype, ("T", in_cols))
    norm_w = p.buffer("norm_w", "f32", (v_dim,))
    chunk_start = p.buffer("chunk_start", "i32", ("NC",))
    chunk_end = p.buffer("chunk_end", "i32", ("NC",))
    chunk_ckpt = p.buffer("chunk_ckpt", "i32", ("NC",))
    seq_slot = p.buffer("seq_slot", "i32", ("S",))
    seq_seg = p.buffer("seq_seg", "i32", ("S+1",))
    seg_chunk = p.buffer("seg_chunk", "i32", ("NS+1",))
    seg_seq = p.buffer("seg_seq", "i32", ("NS",))
    state = p.buffer("kda_state", "f32", ("SLOTS", "SLOT_HEADS", v_dim, k_dim), "w")
    o = p.buffer("o", dtype, ("T", heads * v_dim), "w")
    h, segment = p.program_id(0), p.program_id(1)
    step = ChunkStep(*workspaces, h, block_k, block_v, dtype)
    column, gate_column = h * v_dim, h * v_dim + (gate_offset or 0)
    weight = norm_w.load((0,), (block_v,)).expand(0)

    start = seg_state.load((segment, h, 0, 0), (block_v, block_k))
    first, last = seg_chunk.load((segment,)), seg_chunk.load((segment + 1,))
    with p.loop(first, last, carry=[start]) as (n, (sigma,)):
        row, end = chunk_start.load((n,)), chunk_end.load((n,))
        rounded = sigma.to(dtype)
        inner = step.inner(rounded, n, step.values(n))
        queries = q_decayed.load((n, h, 0, 0), (C, block_k))
        scores = m.load((n, h, 0, 0), (C, C))
        read = dot(inner.to(dtype), scores.T, dot(rounded, queries.T))
        out = read.T  # [C, block_v]
        scale = rsqrt((out * out).sum(1) / float(v_dim) + eps).expand(1)
        logits = gate.load((row, gate_column), (C, block_v), limits=(end, gate_column + v_dim))
        gated = out * scale * weight * sigmoid(logits.to("f32"))
        o.store((row, column), gated.to(dtype), limits=(end, column + v_dim))
        after, checkpoint = step.advance(sigma, inner, n), chunk_ckpt.load((n,))
        with p.when(checkpoint >= 0):
            state.store((checkpoint, h, 0, 0), after)
        p.yield_(after)
    (sigma,) = p.results()

    seq = seg_seq.load((segment,))
    with p.when(seq_seg.load((seq + 1,)).eq(segment + 1)):
        state.store((seq_slot.load((seq,)), h, 0, 0), sigma)
    p.grid(heads, "NS")
