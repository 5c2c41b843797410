"""The one-kernel KDA decode step: one token of every sequence."""

from __future__ import annotations

from dataclasses import dataclass

from k3compiler.dialects.tile.builder import Buffer, Program
from k3compiler.dialects.tile.values import Tile, exp, rsqrt, sigmoid, where
from k3compiler.kernels.kda_math import log_decay, output_gate, unit_vector


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

    def read(self, column: Tile, channel: Tile, block: int, width: Tile | int) -> tuple[Tile, ...]:
        """The window of ``width`` channels (at most ``block``), oldest input first, memory dtype."""
        end = where(self.fresh, 0, channel + width)
        past = [
            self.conv.load((self.slot, j, channel), (block,), limits=(end,))
            for j in range(self.taps - 1)
        ]
        return *past, self.x.load((self.token, column), (block,), limits=(column + width,))

    def silu(self, window: tuple[Tile, ...], channel: Tile, width: Tile | int) -> Tile:
        """SiLU of the convolution, f32."""
        block, total = window[0].shape[0], None
        for j, u in enumerate(window):
            tap = self.weight.load((channel, j), (block,), dims=[0], limits=(channel + width,))
            term = tap * u.to("f32")
            total = term if total is None else total + term
        assert total is not None
        return total * sigmoid(total)

    def write(self, window: tuple[Tile, ...], channel: Tile, width: Tile | int) -> None:
        """The window moves on by one token."""
        for j, u in enumerate(window[1:]):
            self.conv.store((self.slot, j, channel), u, limits=(channel + width,))


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
) -> None:
    """Conv, SiLU, norms, gates, one step of the recurrence in place, gated RMSNorm.

    One program per (sequence, head); ``block_k`` covers Dk, ``block_v`` rows of the state at a time.
    The conv memory is written last: by then a reduction over all of the output has made every thread
    of the program wait for its reads.

    Shapes: x ``[T, in_cols]``; f ``[T, H*Dk]``; gate ``[T, H*Dv]`` (only if ``gate_offset`` is None);
    conv_w ``[2*H*Dk + H*Dv, conv_size]`` f32 (channels q, k, v); a_log ``[H]``, dt_bias ``[H*Dk]``,
    norm_w ``[Dv]`` f32; kda_conv ``[SLOTS, SLOT_TAPS, 2*H*Dk + H*Dv]``;
    kda_state ``[SLOTS, SLOT_HEADS, Dv, Dk]`` f32; o ``[T, H*Dv]``. Row i is sequence i.
    Source: spec 3.2 to 3.5.
    """
    channels = 2 * heads * k_dim + heads * v_dim
    x = p.buffer("x", dtype, ("T", in_cols))
    f = p.buffer("f", dtype, ("T", heads * k_dim))
    gate, gate_first, _ = output_gate(
        p, x, heads=heads, v_dim=v_dim, dtype=dtype, gate_offset=gate_offset
    )
    conv_w = p.buffer("conv_w", "f32", (channels, conv_size))
    a_log = p.buffer("a_log", "f32", (heads,))
    dt_bias = p.buffer("dt_bias", "f32", (heads * k_dim,))
    norm_w = p.buffer("norm_w", "f32", (v_dim,))
    seq_ctx = p.buffer("seq_ctx", "i32", ("S",))
    seq_slot = p.buffer("seq_slot", "i32", ("S",))
    conv = p.buffer("kda_conv", dtype, ("SLOTS", "SLOT_TAPS", channels), "rw")
    state = p.buffer("kda_state", "f32", ("SLOTS", "SLOT_HEADS", v_dim, k_dim), "rw")
    o = p.buffer("o", dtype, ("T", heads * v_dim), "w")
    h, t = p.program_id(0), p.program_id(1)
    slot, fresh = seq_slot.load((t,)), seq_ctx.load((t,)).eq(0)
    step = _ConvStep(x, conv_w, conv, t, slot, fresh, conv_size)

    key = h * k_dim
    windows = [
        (step.read(key + q_offset, key, block_k, k_dim), key, k_dim),
        (
            step.read(key + k_offset, key + heads * k_dim, block_k, k_dim),
            key + heads * k_dim,
            k_dim,
        ),
    ]
    q, k = (unit_vector(step.silu(*window)) for window in windows)
    q = q * k_dim**-0.5
    f_row = f.load((t, key), (block_k,), limits=(key + k_dim,)).to("f32")
    bias = dt_bias.load((key,), (block_k,), limits=(key + k_dim,))
    decay = exp(log_decay(f_row, bias, exp(a_log.load((h,))), lower_bound))
    beta = sigmoid(x.load((t, h + beta_offset)).to("f32"))

    outputs: list[Tile] = []
    squares = p.constant(0.0, "f32")
    for v0 in range(0, v_dim, block_v):
        width = min(block_v, v_dim - v0)
        channel = h * v_dim + (2 * heads * k_dim + v0)
        window = step.read(h * v_dim + (v_offset + v0), channel, block_v, width)
        windows.append((window, channel, width))
        v = step.silu(window, channel, width)
        rows = where(fresh, 0, p.constant(v0 + width, "i32"))
        s = state.load((slot, h, v0, 0), (block_v, block_k), limits=(rows, k_dim)) * decay.expand(0)
        write = (v - (s * k.expand(0)).sum(1)) * beta
        s = s + write.expand(1) * k.expand(0)
        state.store((slot, h, v0, 0), s, limits=(v0 + width, k_dim))
        outputs.append((s * q.expand(0)).sum(1))
        squares = squares + (outputs[-1] * outputs[-1]).sum(0)
    scale = rsqrt(squares / float(v_dim) + eps)

    for i, out in enumerate(outputs):
        column, end = h * v_dim + i * block_v, h * v_dim + min((i + 1) * block_v, v_dim)
        logits = gate.load((t, column + gate_first), (block_v,), limits=(end + gate_first,))
        weight = norm_w.load((i * block_v,), (block_v,))
        o.store(
            (t, column), (out * scale * weight * sigmoid(logits.to("f32"))).to(dtype), limits=(end,)
        )
    for window in windows:
        step.write(*window)
    p.grid(heads, "S")
