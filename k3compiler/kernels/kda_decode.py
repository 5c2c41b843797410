"""The one-kernel KDA decode step: one token of every sequence."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

from k3compiler.config import L2_NORM_EPS
from k3compiler.dialects.tile.builder import Buffer, Program
from k3compiler.dialects.tile.values import Tile, exp, rsqrt, sigmoid, where
from k3compiler.kernels.kda_math import log_decay, output_gate


@dataclass(frozen=True, slots=True)
class _ConvStep:
    """Conv of one token over some channels, in place: history from ``conv`` of ``slot``."""

    x: Buffer
    weight: Buffer
    conv: Buffer
    token: Tile
    slot: Tile
    fresh: Tile
    taps: int

    def past(self, channel: Tile, block: int, width: Tile | int) -> list[Tile]:
        """The inputs before this one of ``width`` channels (at most ``block``), oldest first, memory dtype."""
        end = where(self.fresh, 0, channel + width)
        places = [(self.slot, j, channel) for j in range(self.taps - 1)]
        return [self.conv.load(place, (block,), limits=(end,)) for place in places]

    def now(self, column: Tile, block: int, width: Tile | int) -> Tile:
        """This input."""
        return self.x.load((self.token, column), (block,), limits=(column + width,))

    def taps_of(self, channel: Tile, block: int, width: Tile | int) -> list[Tile]:
        """The convolution's weights, of the oldest input first."""
        end = channel + width
        return [
            self.weight.load((channel, j), (block,), dims=[0], limits=(end,))
            for j in range(self.taps)
        ]

    def silu(self, window: tuple[Tile, ...], taps: list[Tile]) -> Tile:
        """SiLU of the convolution, f32."""
        terms = [tap * u.to("f32") for tap, u in zip(taps, window, strict=True)]
        total = reduce(Tile.__add__, terms)
        return total * sigmoid(total)

    def write(self, window: tuple[Tile, ...], channel: Tile, width: Tile | int) -> None:
        """The window moves on by one token."""
        for j, u in enumerate(window[1:]):
            self.conv.store((self.slot, j, channel), u, limits=(channel + width,))


@dataclass(frozen=True, slots=True)
class _Given:
    """Decay logits that are in memory."""

    f: Buffer

    def ask(self, _key: Tile, _block: int, _end: Tile) -> list[Tile]:
        """No weights."""
        return []

    def read(self, _weights: list[Tile], token: Tile, key: Tile, block: int, end: Tile) -> Tile:
        """A head's logits, f32: columns ``key`` to ``end``."""
        return self.f.load((token, key), (block,), limits=(end,)).to("f32")


@dataclass(frozen=True, slots=True)
class _Product:
    """Decay logits as the product of a row of ``low`` and a head's rows of a weight."""

    low: Buffer
    weight: Buffer
    offset: int
    rank: int
    block_rank: int

    def ask(self, key: Tile, block: int, end: Tile) -> list[Tile]:
        """A head's rows of the weight, in blocks of columns."""
        starts, shape = range(0, self.rank, self.block_rank), (block, self.block_rank)
        return [self.weight.load((key, start), shape, limits=(end, self.rank)) for start in starts]

    def read(self, weights: list[Tile], token: Tile, _key: Tile, _block: int, _end: Tile) -> Tile:
        """As :meth:`_Given.read`, not rounded to the memory's dtype; blocks of columns are added up, then within."""
        starts, last = range(0, self.rank, self.block_rank), self.offset + self.rank
        rows = [
            self.low.load((token, self.offset + start), (self.block_rank,), limits=(last,))
            for start in starts
        ]
        parts = [
            weight.to("f32") * row.to("f32").expand(0)
            for weight, row in zip(weights, rows, strict=True)
        ]
        return reduce(Tile.__add__, parts).sum(1)


def _decay_logits(
    p: Program, dtype: str, width: int, low_cols: int, offset: int, rank: int | None, block: int
) -> _Given | _Product:
    """Declares the buffers that all heads' decay logits, ``width`` in a row, come from."""
    if rank is None:
        return _Given(p.buffer("f", dtype, ("T", width)))
    low = p.buffer("low", dtype, ("T", low_cols))
    return _Product(low, p.weight("f_w", dtype, (width, rank)), offset, rank, block)


def _unit_pair(q: Tile, k: Tile, k_dim: int) -> tuple[Tile, Tile, Tile]:
    """q of length ``k_dim^-0.5``, k of length 1, and their product; eps is added to the sums of squares (spec 3.3)."""
    q_squared, k_squared, kq = (product.sum(0) for product in (q * q, k * k, q * k))
    q_scale = rsqrt(q_squared + L2_NORM_EPS) * k_dim**-0.5
    k_scale = rsqrt(k_squared + L2_NORM_EPS)
    return q * q_scale, k * k_scale, kq * q_scale * k_scale


def _shared(vector: Tile, axis: int) -> Tile:
    """The vector, made once: a sum over an axis of 1 ends what every thread would make anew for its rows or columns.

    ``axis`` is the axis of the tile along which the vector is repeated.
    """
    return vector.expand(1 - axis).sum(1 - axis)


def kda_decode(
    p: Program,
    *,
    heads: int,
    k_dim: int,
    v_dim: int,
    block_k: int,
    block_v: int,
    conv_size: int,
    lower_bound: float | None,
    eps: float,
    dtype: str,
    in_cols: int,
    q_offset: int,
    k_offset: int,
    v_offset: int,
    beta_offset: int,
    gate_offset: int | None,
    rank: int | None = None,
    block_rank: int = 0,
    low_cols: int = 0,
    low_offset: int = 0,
) -> None:
    """Conv, SiLU, norms, gates, one step of the recurrence in place, gated RMSNorm.

    One program per (sequence, head); ``block_k`` covers Dk, ``block_v`` rows of the state at a time. All of the
    state is asked for before anything else (the decay, the first vector shared, makes the threads wait for each other
    while it and the conv memory are on their way), and is gone through once: with s the decayed state and
    w = (v - s k) beta, the new state is s + w k^T and its output s q + w (k q), so one sweep gives both sums.
    Vectors are made once (:func:`_shared`), not by every thread that holds a piece of their row. The conv memory
    is written last: by then a reduction over all of the output has made every thread wait for its reads.

    With ``rank`` every program makes its head's decay logits itself, from a low-rank row and the head's rows of f_w.

    Shapes: x ``[T, in_cols]``; f ``[T, H*Dk]`` (with ``rank`` low ``[T, low_cols]`` from column ``low_offset`` and f_w
    ``[H*Dk, rank]``); gate ``[T, H*Dv]`` (only if ``gate_offset`` is None);
    conv_w ``[2*H*Dk + H*Dv, conv_size]`` f32 (channels q, k, v); a_log ``[H]``, dt_bias ``[H*Dk]``,
    norm_w ``[Dv]`` f32; kda_conv ``[SLOTS, conv_size-1, 2*H*Dk + H*Dv]``;
    kda_state ``[SLOTS, H, Dv, Dk]`` f32; o ``[T, H*Dv]``. Row i is sequence i.
    Source: spec 3.2 to 3.5.
    """
    channels = 2 * heads * k_dim + heads * v_dim
    x = p.buffer("x", dtype, ("T", in_cols))
    decay_logits = _decay_logits(p, dtype, heads * k_dim, low_cols, low_offset, rank, block_rank)
    gate, gate_first, _ = output_gate(
        p, x, heads=heads, v_dim=v_dim, dtype=dtype, gate_offset=gate_offset
    )
    conv_w = p.weight("conv_w", "f32", (channels, conv_size))
    a_log = p.weight("a_log", "f32", (heads,))
    dt_bias = p.weight("dt_bias", "f32", (heads * k_dim,))
    norm_w = p.weight("norm_w", "f32", (v_dim,))
    seq_ctx = p.settled("seq_ctx", "i32", ("S",))
    seq_slot = p.settled("seq_slot", "i32", ("S",))
    conv = p.settled("kda_conv", dtype, ("SLOTS", "SLOT_TAPS", channels), "rw")
    state = p.settled("kda_state", "f32", ("SLOTS", "SLOT_HEADS", v_dim, k_dim), "rw")
    o = p.buffer("o", dtype, ("T", heads * v_dim), "w")
    h, t = p.program_id(0), p.program_id(1)
    slot, fresh = seq_slot.load((t,)), seq_ctx.load((t,)).eq(0)
    step = _ConvStep(x, conv_w, conv, t, slot, fresh, conv_size)

    blocks = [(v0, min(block_v, v_dim - v0)) for v0 in range(0, v_dim, block_v)]
    states: list[Tile] = []
    for v0, width in blocks:
        rows = where(fresh, 0, p.constant(v0 + width, "i32"))
        states.append(state.load((slot, h, v0, 0), (block_v, block_k), limits=(rows, k_dim)))

    key = h * k_dim
    parts = [
        (key + q_offset, key, block_k, k_dim),
        (key + k_offset, key + heads * k_dim, block_k, k_dim),
    ]
    for v0, width in blocks:
        channel = h * v_dim + (2 * heads * k_dim + v0)
        parts.append((h * v_dim + (v_offset + v0), channel, block_v, width))
    past = [step.past(channel, block, width) for _, channel, block, width in parts]
    taps = [step.taps_of(channel, block, width) for _, channel, block, width in parts]
    f_weights = decay_logits.ask(key, block_k, key + k_dim)
    bias = dt_bias.load((key,), (block_k,), limits=(key + k_dim,))
    log_rate, weights = a_log.load((h,)), [norm_w.load((v0,), (block_v,)) for v0, _ in blocks]
    # what the launch before made is read from here on
    windows = [
        ((*before, step.now(column, block, width)), channel, width)
        for before, (column, channel, block, width) in zip(past, parts, strict=True)
    ]
    f_row = decay_logits.read(f_weights, t, key, block_k, key + k_dim)
    rate, beta = exp(log_rate), sigmoid(x.load((t, h + beta_offset)).to("f32"))
    starts, ends = ([h * v_dim + v0 + n * last for v0, n in blocks] for last in (0, 1))
    logits = [
        gate.load((t, column + gate_first), (block_v,), limits=(end + gate_first,))
        for column, end in zip(starts, ends, strict=True)
    ]

    decay = _shared(exp(log_decay(f_row, bias, rate, lower_bound)), 0).expand(0)
    q, k, kq = _unit_pair(
        step.silu(windows[0][0], taps[0]), step.silu(windows[1][0], taps[1]), k_dim
    )
    q, k = (_shared(v, 0).expand(0) for v in (q, k))

    outputs: list[Tile] = []
    for (v0, width), window, tap, before in zip(blocks, windows[2:], taps[2:], states, strict=True):
        s = before * decay
        along_k, along_q = (product.sum(1) for product in (s * k, s * q))
        write = (_shared(step.silu(window[0], tap), 1) - along_k) * beta
        state.store((slot, h, v0, 0), s + write.expand(1) * k, limits=(v0 + width, k_dim))
        outputs.append(along_q + write * kq)
    squares = reduce(Tile.__add__, [(out * out).sum(0) for out in outputs])
    scale = rsqrt(squares / float(v_dim) + eps)
    for i, out in enumerate(outputs):
        gated = out * scale * _shared(weights[i] * sigmoid(logits[i].to("f32")), 1)
        o.store((t, starts[i]), gated.to(dtype), limits=(ends[i],))
    for window in windows:
        step.write(*window)
    p.grid(heads, "S")
