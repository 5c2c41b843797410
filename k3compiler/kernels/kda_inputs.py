"""KDA prefill, first launch: conv, SiLU, norms, gates; and the conv memory after the step."""

from __future__ import annotations

from dataclasses import dataclass

from k3compiler.dialects.tile.builder import Buffer, Program
from k3compiler.dialects.tile.values import Tile, exp, sigmoid, where
from k3compiler.kernels.kda_math import CHUNK_TOKENS, log_decay, unit_rows


@dataclass(frozen=True, slots=True)
class _ConvChunk:
    """The rows ``start .. end`` of a sequence whose tokens of this step begin at ``first``."""

    x: Buffer
    weight: Buffer
    conv: Buffer
    start: Tile
    end: Tile
    first: Tile
    slot: Tile
    fresh: Tile
    taps: int

    def silu(self, column: Tile, channel: Tile, block: int, width: int) -> Tile:
        """SiLU of the convolution ``[C, block]`` f32; rows before ``first`` come from the slot."""
        p = self.x.program
        since_first = p.arange(CHUNK_TOKENS) + (self.start - self.first)
        history = where(self.fresh, 0, p.constant(self.taps - 1, "i32"))
        total = p.zeros((CHUNK_TOKENS, block))
        for j in range(self.taps):
            back = self.taps - 1 - j
            u = self.x.load(
                (self.start - back, column),
                (CHUNK_TOKENS, block),
                limits=(self.end - back, column + width),
            ).to("f32")
            if back:
                u = where((since_first >= back).expand(1), u, 0.0)
                u = u + self.conv.load(
                    (self.slot, 0, channel),
                    (CHUNK_TOKENS, block),
                    dims=(1, 2),
                    rows=since_first + j,
                    limits=(history, channel + width),
                ).to("f32")
            tap = self.weight.load((channel, j), (block,), dims=[0], limits=(channel + width,))
            total = total + u * tap.expand(0)
        return total * sigmoid(total)


def kda_inputs(
    p: Program,
    *,
    heads: int,
    k_dim: int,
    v_dim: int,
    block_k: int,
    block_v: int,
    conv_size: int,
    lower_bound: float | None,
    dtype: str,
    in_cols: int,
    q_offset: int,
    k_offset: int,
    v_offset: int,
    beta_offset: int,
) -> None:
    """Conv + SiLU, L2 norms, log-decay and its sum since the chunk's first row, beta.

    Programs (q, k, v or gates; head; chunk); ``block_k`` and ``block_v`` cover Dk and Dv. Tokens before the step come
    from ``kda_conv`` of the sequence's slot (zeros where ``seq_ctx`` is 0).

    Shapes: x ``[T, in_cols]``; f ``[T, H*Dk]``; conv_w ``[2*H*Dk + H*Dv, conv_size]`` f32 (channels q, k, v);
    a_log ``[H]``, dt_bias ``[H*Dk]`` f32; kda_conv ``[SLOTS, SLOT_TAPS, 2*H*Dk + H*Dv]``
    -> q, k ``[T, H, Dk]`` (unit rows, q times Dk^-0.5), v ``[T, H, Dv]``, g ``[T, H, Dk]`` f32 (cumulative),
    beta ``[T, H]`` f32. Source: spec 3.2, 3.3, 3.7 (G).
    """
    channels = 2 * heads * k_dim + heads * v_dim
    x = p.buffer("x", dtype, ("T", in_cols))
    f = p.buffer("f", dtype, ("T", heads * k_dim))
    conv_w = p.buffer("conv_w", "f32", (channels, conv_size))
    a_log = p.buffer("a_log", "f32", (heads,))
    dt_bias = p.buffer("dt_bias", "f32", (heads * k_dim,))
    conv = p.buffer("kda_conv", dtype, ("SLOTS", "SLOT_TAPS", channels))
    seq_start = p.buffer("seq_start", "i32", ("S+1",))
    seq_ctx = p.buffer("seq_ctx", "i32", ("S",))
    seq_slot = p.buffer("seq_slot", "i32", ("S",))
    chunk_start = p.buffer("chunk_start", "i32", ("NC",))
    chunk_end = p.buffer("chunk_end", "i32", ("NC",))
    chunk_seq = p.buffer("chunk_seq", "i32", ("NC",))
    q_out = p.buffer("q", dtype, ("T", heads, k_dim), "w")
    k_out = p.buffer("k", dtype, ("T", heads, k_dim), "w")
    v_out = p.buffer("v", dtype, ("T", heads, v_dim), "w")
    g_out = p.buffer("g", "f32", ("T", heads, k_dim), "w")
    beta_out = p.buffer("beta", "f32", ("T", heads), "w")
    part, h, chunk = (p.program_id(axis) for axis in range(3))
    seq, start, end = (b.load((chunk,)) for b in (chunk_seq, chunk_start, chunk_end))
    first, slot, fresh = seq_start.load((seq,)), seq_slot.load((seq,)), seq_ctx.load((seq,)).eq(0)
    rows = _ConvChunk(x, conv_w, conv, start, end, first, slot, fresh, conv_size)
    key, value, keys = h * k_dim, h * v_dim, heads * k_dim
    at, k_ends = (start, h, 0), (end, k_dim)

    with p.when(part.eq(0)):
        q = unit_rows(rows.silu(key + q_offset, key, block_k, k_dim)) * k_dim**-0.5
        q_out.store(at, q.to(dtype), dims=(0, 2), limits=k_ends)
    with p.when(part.eq(1)):
        k = unit_rows(rows.silu(key + k_offset, key + keys, block_k, k_dim))
        k_out.store(at, k.to(dtype), dims=(0, 2), limits=k_ends)
    with p.when(part.eq(2)):
        v = rows.silu(value + v_offset, value + 2 * keys, block_v, v_dim)
        v_out.store(at, v.to(dtype), dims=(0, 2), limits=(end, v_dim))
    with p.when(part.eq(3)):
        logits = f.load((start, key), (CHUNK_TOKENS, block_k), limits=(end, key + k_dim)).to("f32")
        bias = dt_bias.load((key,), (block_k,), limits=(key + k_dim,)).expand(0)
        g = log_decay(logits, bias, exp(a_log.load((h,))), lower_bound)
        g_out.store(at, g.cumsum(0), dims=(0, 2), limits=k_ends)
        beta = x.load((start, h + beta_offset), (CHUNK_TOKENS,), dims=[0], limits=(end,)).to("f32")
        beta_out.store((start, h), sigmoid(beta), dims=[0], limits=(end,))
    p.grid(4, heads, "NC")


def kda_conv_state(
    p: Program,
    *,
    channels: int,
    block: int,
    conv_size: int,
    dtype: str,
    in_cols: int,
    qkv_offset: int,
) -> None:
    """The last ``conv_size - 1`` inputs after the step, into every sequence's slot and its checkpoints.

    A sequence with fewer new tokens keeps some of its old rows. One program per (channel block, sequence): the
    checkpoints read the slot's old rows, so the slot is written last. Launched after kda_inputs.

    Shapes: x ``[T, in_cols]``, of which the columns from ``qkv_offset`` are the channels q, k, v;
    kda_conv ``[SLOTS, SLOT_TAPS, channels]``. Source: spec 3.2, trap 15, trap 17.
    """
    x = p.buffer("x", dtype, ("T", in_cols))
    conv = p.buffer("kda_conv", dtype, ("SLOTS", "SLOT_TAPS", channels), "rw")
    seq_start = p.buffer("seq_start", "i32", ("S+1",))
    seq_ctx = p.buffer("seq_ctx", "i32", ("S",))
    seq_slot = p.buffer("seq_slot", "i32", ("S",))
    seq_seg = p.buffer("seq_seg", "i32", ("S+1",))
    seg_chunk = p.buffer("seg_chunk", "i32", ("NS+1",))
    chunk_end = p.buffer("chunk_end", "i32", ("NC",))
    chunk_ckpt = p.buffer("chunk_ckpt", "i32", ("NC",))
    channel, seq = p.program_id(0) * block, p.program_id(1)
    first, slot = seq_start.load((seq,)), seq_slot.load((seq,))
    old_end = where(seq_ctx.load((seq,)).eq(0), 0, p.constant(channels, "i32"))
    column_end = qkv_offset + channels

    def rows_before(end: Tile) -> list[Tile]:
        """The ``conv_size - 1`` inputs before token row ``end``, oldest first."""
        made: list[Tile] = []
        for j in range(conv_size - 1):
            row = end - (conv_size - 1 - j)
            is_new = row >= first
            kept = conv.load(
                (slot, where(is_new, 0, row - first + (conv_size - 1)), channel),
                (block,),
                limits=(old_end,),
            )
            fresh = x.load(
                (where(is_new, row, first), channel + qkv_offset), (block,), limits=(column_end,)
            )
            made.append(where(is_new, fresh, kept))
        return made

    chunks = [seg_chunk.load((seq_seg.load((s,)),)) for s in (seq, seq + 1)]
    with p.loop(*chunks) as (n, _):
        target = chunk_ckpt.load((n,))
        with p.when(target >= 0):
            for j, row in enumerate(rows_before(chunk_end.load((n,)))):
                conv.store((target, j, channel), row)
    for j, row in enumerate(rows_before(seq_start.load((seq + 1,)))):
        conv.store((slot, j, channel), row)
    p.grid(f"cdiv({channels}, {block})", "S")
