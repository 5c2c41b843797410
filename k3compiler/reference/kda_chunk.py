"""KDA in chunks: the four ops prepare, segment maps, scan, output (spec 3.7).

A chunk covers the token rows ``[chunk_start, chunk_end)`` and is padded to C rows with zeros,
g = 0 and beta = 0, which add nothing. A segment is a run of chunks of one sequence; over it the
state maps affinely, ``Σ_out = Σ_in X + B`` with ``Σ = Sᵀ [V, K]``. Tables are as in
``docs/package.md``: ``chunk_start/chunk_end [N]``, ``seg_chunk [NS+1]``, ``seq_seg [S+1]``.

Decays are differences of cumulative logs, taken before the exponential: every exponent is <= 0,
so nothing overflows for any gate.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
CHUNK_TOKENS = 64


class PreparedChunks(NamedTuple):
    """What a chunk's tokens do to the state and the output, whatever the state is.

    Shapes: ``w [N, H, C, K]``, ``u [N, H, C, V]``, ``q_decayed = q e^G [N, H, C, K]``,
    ``k_tail = k e^(G_C - G) [N, H, C, K]``, ``m [N, H, C, C]`` (lower, diagonal kept),
    ``gamma = e^(G_C) [N, H, K]``.
    """

    w: Array
    u: Array
    q_decayed: Array
    k_tail: Array
    m: Array
    gamma: Array


class SegmentMaps(NamedTuple):
    """``Σ_out = Σ_in (diag(gamma) + r) + b`` of every segment.

    Shapes: ``gamma [NS, H, K]``, ``r [NS, H, K, K]``, ``b [NS, H, V, K]``.
    """

    gamma: Array
    r: Array
    b: Array


def kda_pair_scores(left: Array, right: Array, cumulative: Array) -> Array:
    """``Σ_d left_id right_jd e^(G_id - G_jd)`` for i >= j, else 0.

    Shapes: ``left, right, cumulative [H, C, K]`` -> ``[H, C, C]``.
    """
    num_heads, rows, _ = left.shape
    scores = np.zeros((num_heads, rows, rows), left.dtype)
    for i in range(rows):
        decay = np.exp(cumulative[:, i : i + 1] - cumulative[:, : i + 1])
        scores[:, i, : i + 1] = (left[:, i : i + 1] * right[:, : i + 1] * decay).sum(-1)
    return scores


def solve_unit_lower(a: Array, rhs: Array) -> Array:
    """``(I + a)⁻¹ rhs`` by forward substitution; ``a [H, C, C]`` strictly lower."""
    x = rhs.copy()
    for i in range(1, rhs.shape[1]):
        x[:, i] -= np.einsum("hj,hjd->hd", a[:, i, :i], x[:, :i])
    return x


def kda_prepare(
    q: Array,
    k: Array,
    v: Array,
    g: Array,
    beta: Array,
    chunk_start: Array,
    chunk_end: Array,
    chunk_tokens: int = CHUNK_TOKENS,
) -> PreparedChunks:
    """Everything of a chunk that does not need the state; parallel over chunks and heads.

    Shapes: as for :func:`k3compiler.reference.kda.kda_recurrence`, plus the chunk table.
    Source: spec 3.7 (G, A, M, Tm, w, u).
    """
    rows = [slice(int(a), int(b)) for a, b in zip(chunk_start, chunk_end, strict=True)]
    operands = (q, k, v, g, beta[..., None])
    chunks = [_prepare_one(*(_padded(x[r], chunk_tokens) for x in operands)) for r in rows]
    return PreparedChunks(*(np.stack(parts) for parts in zip(*chunks, strict=True)))


def _padded(x: Array, rows: int) -> Array:
    """``[t, H, D]`` to ``[H, rows, D]``, zeros behind."""
    return np.pad(x, ((0, rows - len(x)), (0, 0), (0, 0))).transpose(1, 0, 2)


def _prepare_one(q: Array, k: Array, v: Array, g: Array, beta: Array) -> PreparedChunks:
    cumulative = np.cumsum(g, axis=1)
    a = np.tril(beta * kda_pair_scores(k, k, cumulative), -1)
    m = kda_pair_scores(q, k, cumulative)
    decay, total = np.exp(cumulative), cumulative[:, -1:]
    w = solve_unit_lower(a, beta * k * decay)
    u = solve_unit_lower(a, beta * v)
    k_tail = k * np.exp(total - cumulative)
    return PreparedChunks(w, u, q * decay, k_tail, m, np.exp(total[:, 0]))


def kda_state_step(state: Array, chunk: PreparedChunks, n: int) -> tuple[Array, Array]:
    """Chunk n's effect on the state: -> ``(U [H, C, V], new state [H, V, K])``."""
    inner = chunk.u[n] - chunk.w[n] @ state.swapaxes(1, 2)
    return inner, state * chunk.gamma[n][:, None] + inner.swapaxes(1, 2) @ chunk.k_tail[n]


def kda_segment_maps(prepared: PreparedChunks, seg_chunk: Array) -> SegmentMaps:
    """The affine map of every segment: b from a zero state, the rest from the unit state."""
    num_heads, _, k_dim = prepared.w.shape[1:]
    v_dim = prepared.u.shape[-1]
    homogeneous = prepared._replace(u=np.zeros_like(prepared.w))
    maps: list[SegmentMaps] = []
    for first, last in pairwise(seg_chunk):
        b = np.zeros((num_heads, v_dim, k_dim), prepared.w.dtype)
        x = np.broadcast_to(np.eye(k_dim, dtype=b.dtype), (num_heads, k_dim, k_dim))
        for n in range(int(first), int(last)):
            b = kda_state_step(b, prepared, n)[1]
            x = kda_state_step(x, homogeneous, n)[1]
        gamma = prepared.gamma[int(first) : int(last)].prod(axis=0)
        maps.append(SegmentMaps(gamma, x - gamma[:, :, None] * np.eye(k_dim, dtype=b.dtype), b))
    return SegmentMaps(*(np.stack(parts) for parts in zip(*maps, strict=True)))


def kda_scan(maps: SegmentMaps, initial: Array, seq_seg: Array) -> tuple[Array, Array]:
    """States at the start of every segment, and after the last one of every sequence.

    Shapes: ``initial [S, H, V, K]``, ``seq_seg [S+1]`` -> ``starts [NS, H, V, K]``,
    ``final [S, H, V, K]``.
    """
    starts = np.empty_like(maps.b)
    final = initial.copy()
    for s, (first, last) in enumerate(pairwise(seq_seg)):
        for n in range(int(first), int(last)):
            starts[n] = final[s]
            final[s] = final[s] * maps.gamma[n][:, None] + final[s] @ maps.r[n] + maps.b[n]
    return starts, final


def kda_output(
    prepared: PreparedChunks,
    starts: Array,
    seg_chunk: Array,
    chunk_start: Array,
    chunk_end: Array,
    num_tokens: int,
) -> tuple[Array, Array]:
    """Every segment again from its true start, writing the outputs.

    Shapes: ``starts [NS, H, V, K]`` -> ``o [T, H, V]``, states after each chunk
    ``[NC, H, V, K]``. Source: spec 3.7 (o, S_C).
    """
    num_heads, _, v_dim = prepared.u.shape[1:]
    o = np.zeros((num_tokens, num_heads, v_dim), starts.dtype)
    after = np.empty((len(chunk_start), *starts.shape[1:]), starts.dtype)
    for s, (first, last) in enumerate(pairwise(seg_chunk)):
        state = starts[s]
        for n in range(int(first), int(last)):
            inner, after[n] = kda_state_step(state, prepared, n)
            rows = prepared.q_decayed[n] @ state.swapaxes(1, 2) + prepared.m[n] @ inner
            count = int(chunk_end[n]) - int(chunk_start[n])
            o[int(chunk_start[n]) : int(chunk_end[n])] = rows[:, :count].transpose(1, 0, 2)
            state = after[n]
    return o, after


def chunk_bounds(
    num_tokens: int, first_position: int = 0, chunk_tokens: int = CHUNK_TOKENS
) -> tuple[Array, Array]:
    """Chunks of one sequence's new tokens, cut at absolute multiples of ``chunk_tokens``.

    ``first_position`` is the absolute position of the first token -> ``chunk_start,
    chunk_end [N] i32`` (token rows).
    """
    ahead = -first_position % chunk_tokens or chunk_tokens
    cuts = [0, *range(ahead, num_tokens, chunk_tokens), num_tokens]
    return np.array(cuts[:-1], np.int32), np.array(cuts[1:], np.int32)


def kda_chunked(
    q: Array,
    k: Array,
    v: Array,
    g: Array,
    beta: Array,
    state: Array | None,
    *,
    first_position: int = 0,
    chunk_tokens: int = CHUNK_TOKENS,
    segment_chunks: int | None = None,
) -> tuple[Array, Array]:
    """One sequence through the four ops; same meaning as ``kda_recurrence``.

    ``segment_chunks`` is the segment length in chunks; None means one segment.
    """
    start, end = chunk_bounds(len(q), first_position, chunk_tokens)
    step = segment_chunks or len(start)
    seg_chunk = np.array([*range(0, len(start), step), len(start)], np.int32)
    prepared = kda_prepare(q, k, v, g, beta, start, end, chunk_tokens)
    maps = kda_segment_maps(prepared, seg_chunk)
    initial = np.zeros_like(maps.b[:1]) if state is None else state[None]
    starts, final = kda_scan(maps, initial, np.array([0, len(seg_chunk) - 1], np.int32))
    o, _ = kda_output(prepared, starts, seg_chunk, start, end, len(q))
    return o, final[0]
