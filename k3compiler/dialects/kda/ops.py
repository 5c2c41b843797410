"""KDA as kernels: inputs, the four chunk ops, the one-step decode."""

from collections.abc import Iterator
from typing import Any

from k3compiler.dialects.k3.dialect import FLOATS, BatchType
from k3compiler.dialects.k3.mixers import bound_fault
from k3compiler.ir.dialect import (
    Checked,
    Dialect,
    Fault,
    FloatAttr,
    IntegerAttr,
    Operand,
    Pure,
    Result,
    Tensor,
    positive,
    ranked,
    same,
    shape,
    shaped,
    typed,
    want,
)

SUB_BLOCK_TOKENS = 16


class Kda(Dialect, name="kda"):
    """Kimi Delta Attention, one op a kernel."""


class KdaOp(Checked, dialect=Kda, traits=[Pure]):
    """Base of the kda ops."""


def _input_faults(op: Any, heads: int, decay_width: int | None) -> Iterator[Fault]:
    """What kda.inputs and kda.decode read in common; ``decay_width`` is that of the decay's logits."""
    yield positive("num_heads", heads)
    yield ranked("conv_weight", op.conv_weight, 2)
    yield shaped("qkv", op.qkv, None, shape(op.conv_weight)[0])
    yield typed("conv_weight", op.conv_weight, "f32")
    taps = shape(op.conv_weight)[-1] or 1
    yield shaped("conv_state", op.conv_state, None, taps - 1, shape(op.conv_weight)[0])
    yield shaped("beta", op.beta, None, heads)
    yield shaped("a_log", op.a_log, heads)
    yield shaped("dt_bias", op.dt_bias, decay_width)
    for name in ("a_log", "dt_bias"):
        yield typed(name, getattr(op, name), "f32")
    yield positive("q_scale", op.q_scale.value)
    yield positive("l2_eps", op.l2_eps.value)
    yield bound_fault(op)


class Inputs(KdaOp, name="inputs"):
    """Conv, SiLU, L2 norms, gate, beta and the chunk-cumulative gate in one.

    ``q = q_scale l2(silu(conv(q)))``, ``k = l2(silu(conv(k)))``, ``v = silu(conv(v))``,
    ``beta_out = σ(beta)``;
    ``g`` is the inclusive sum of the log-decays over the token's kda chunk up to the token, chunks being the
    batch's ``chunk_start .. chunk_end`` rows on a grid of ``chunk_tokens`` (1: no chunks, the log-decay
    itself). With ``lower_bound`` the gate is bounded, without it softplus (as k3.kda_gate).

    Shapes: qkv [T, 2*H*Dk + H*Dv] (columns q|k|v), f [T, H*Dk], beta [T, H] (logits),
    conv_weight [2*H*Dk + H*Dv, W] f32, conv_state [SLOTS, W-1, 2*H*Dk + H*Dv], a_log [H] f32, dt_bias [H*Dk] f32
    -> q, k [T, H*Dk], v [T, H*Dv], g [T, H*Dk] f32, beta_out [T, H] f32.
    """

    OPTIONAL = ("lower_bound",)
    EQUATION = "3.2,3.3"
    qkv: Operand[Tensor]
    f: Operand[Tensor]
    beta: Operand[Tensor]
    conv_weight: Operand[Tensor]
    conv_state: Operand[Tensor]
    a_log: Operand[Tensor]
    dt_bias: Operand[Tensor]
    batch: Operand[BatchType]
    num_heads: IntegerAttr
    chunk_tokens: IntegerAttr
    q_scale: FloatAttr
    l2_eps: FloatAttr
    q: Result[Tensor]
    k: Result[Tensor]
    v: Result[Tensor]
    g: Result[Tensor]
    beta_out: Result[Tensor]

    def faults(self) -> Iterator[Fault]:
        heads = self.num_heads.value
        yield from _input_faults(self, heads, shape(self.f)[-1])
        key_width, value_width = shape(self.f)[-1] or 0, shape(self.v)[-1] or 0
        yield want("columns of qkv", 2 * key_width + value_width, shape(self.qkv)[-1])
        for name in ("q", "k", "g"):
            yield shaped(name, getattr(self, name), None, key_width)
        yield shaped("beta_out", self.beta_out, None, heads)
        for name in ("g", "beta_out"):
            yield typed(name, getattr(self, name), "f32")
        chunk = self.chunk_tokens.value
        if chunk != 1 and (chunk <= 0 or chunk % SUB_BLOCK_TOKENS):
            yield f"chunk_tokens: expected 1 or a multiple of {SUB_BLOCK_TOKENS}, found {chunk}"


class ConvState(KdaOp, name="conv_state"):
    """The conv state after this step: the last W-1 inputs of each sequence, oldest first.

    Inputs from before the step come from the slot (zeros if ``seq_ctx`` is 0). The window at the end of
    chunk n also goes to slot ``chunk_ckpt[n]`` if that is not -1.

    Shapes: qkv [T, C], conv_state [SLOTS, W-1, C] -> new_state as conv_state.
    """

    EQUATION = "3.2"
    qkv: Operand[Tensor]
    conv_state: Operand[Tensor]
    batch: Operand[BatchType]
    new_state: Result[Tensor]

    def faults(self) -> Iterator[Fault]:
        yield ranked("conv_state", self.conv_state, 3)
        yield shaped("qkv", self.qkv, None, shape(self.conv_state)[-1])
        yield same("new_state", self.conv_state, self.new_state)


class Prepare(KdaOp, name="prepare"):
    """What a chunk's tokens do, whatever the state is; parallel over chunks and heads.

    With the chunk-cumulative gate G: ``A = β_i Σ k_i k_j e^(G_i-G_j)`` (i > j), ``m = Σ q_i k_j e^(G_i-G_j)``
    (i >= j), ``w = (I+A)⁻¹ (β k e^G)``, ``u = (I+A)⁻¹ (β v)``, ``q_decayed = q e^G``, ``k_tail = k e^(G_C-G)``,
    ``gamma = e^(G_C)``. Rows past the chunk's end are zero in all of them. ``lower_bound`` (optional) is the
    bound of a single log-decay: with it, decays may be factored within a sub-block of 16 tokens.

    Shapes: q, k [T, H*Dk], v [T, H*Dv], g [T, H*Dk] f32 (cumulative), beta [T, H] f32
    -> w [N, H, C, Dk], u [N, H, C, Dv], q_decayed, k_tail [N, H, C, Dk], m [N, H, C, C], gamma [N, H, Dk] f32.
    """

    OPTIONAL = ("lower_bound",)
    EQUATION = "3.7"
    q: Operand[Tensor]
    k: Operand[Tensor]
    v: Operand[Tensor]
    g: Operand[Tensor]
    beta: Operand[Tensor]
    batch: Operand[BatchType]
    num_heads: IntegerAttr
    chunk_tokens: IntegerAttr
    w: Result[Tensor]
    u: Result[Tensor]
    q_decayed: Result[Tensor]
    k_tail: Result[Tensor]
    m: Result[Tensor]
    gamma: Result[Tensor]

    def faults(self) -> Iterator[Fault]:
        heads, chunk = self.num_heads.value, self.chunk_tokens.value
        if heads <= 0 or chunk <= 0 or chunk % SUB_BLOCK_TOKENS:
            wanted = f"expected heads and a multiple of {SUB_BLOCK_TOKENS}"
            yield f"num_heads, chunk_tokens: {wanted}, found {heads}, {chunk}"
            return
        key, value = (shape(self.q)[-1] or 0) // heads, (shape(self.v)[-1] or 0) // heads
        for name in ("q", "k", "g"):
            yield shaped(name, getattr(self, name), None, heads * key)
        yield shaped("v", self.v, None, heads * value)
        yield shaped("beta", self.beta, None, heads)
        for name in ("g", "beta", "gamma"):
            yield typed(name, getattr(self, name), "f32")
        for name in ("w", "q_decayed", "k_tail"):
            yield shaped(name, getattr(self, name), None, heads, chunk, key)
        yield shaped("u", self.u, None, heads, chunk, value)
        yield shaped("m", self.m, None, heads, chunk, chunk)
        yield shaped("gamma", self.gamma, None, heads, key)
        yield bound_fault(self)


class SegmentMaps(KdaOp, name="segment_maps"):
    """The affine map of every segment's state: ``Σ_out = Σ_in (diag(gamma_seg) + r) + b``, with ``Σ = Sᵀ``.

    ``b`` is the segment's chunks from a zero state; ``r`` the same from the unit state with u = 0, less its
    diagonal decay.

    Shapes: w [N, H, C, Dk], u [N, H, C, Dv], k_tail [N, H, C, Dk], gamma [N, H, Dk] f32
    -> gamma_seg [NS, H, Dk] f32, r [NS, H, Dk, Dk] f32, b [NS, H, Dv, Dk] f32.
    """

    EQUATION = "3.7"
    w: Operand[Tensor]
    u: Operand[Tensor]
    k_tail: Operand[Tensor]
    gamma: Operand[Tensor]
    batch: Operand[BatchType]
    gamma_seg: Result[Tensor]
    r: Result[Tensor]
    b: Result[Tensor]

    def faults(self) -> Iterator[Fault]:
        yield ranked("w", self.w, 4)
        yield ranked("u", self.u, 4)
        _, heads, chunk, key = shape(self.w)
        value = shape(self.u)[-1]
        yield shaped("u", self.u, None, heads, chunk, value)
        yield same("k_tail", self.w, self.k_tail)
        yield shaped("gamma", self.gamma, None, heads, key)
        yield shaped("gamma_seg", self.gamma_seg, None, heads, key)
        yield shaped("r", self.r, None, heads, key, key)
        yield shaped("b", self.b, None, heads, value, key)
        for name in ("gamma", "gamma_seg", "r", "b"):
            yield typed(name, getattr(self, name), "f32")


class Scan(KdaOp, name="scan"):
    """States at the start of every segment; a sequence's first starts from its slot (zero if ``seq_ctx`` is 0).

    Shapes: gamma_seg [NS, H, Dk] f32, r [NS, H, Dk, Dk] f32, b [NS, H, Dv, Dk] f32, state [SLOTS, H, Dv, Dk] f32
    -> starts [NS, H, Dv, Dk] f32.
    """

    EQUATION = "3.7"
    gamma_seg: Operand[Tensor]
    r: Operand[Tensor]
    b: Operand[Tensor]
    state: Operand[Tensor]
    batch: Operand[BatchType]
    starts: Result[Tensor]

    def faults(self) -> Iterator[Fault]:
        yield ranked("state", self.state, 4)
        _, heads, value, key = shape(self.state)
        yield shaped("gamma_seg", self.gamma_seg, None, heads, key)
        yield shaped("r", self.r, None, heads, key, key)
        yield shaped("b", self.b, None, heads, value, key)
        yield same("starts", self.state, self.starts)
        yield typed("state", self.state, "f32")


class Output(KdaOp, name="output"):
    """Every segment again from its true start, the gated norm of what comes out, and the states.

    The state after a sequence's last chunk goes to its slot; the state after chunk n also to slot
    ``chunk_ckpt[n]`` if that is not -1.

    ``U = u - w Sᵀ-start``, ``o = q_decayed S + m U``, then ``y = o rsqrt(mean_d(o²) + eps) norm_weight ⊙ σ(gate)``.

    Shapes: w [N, H, C, Dk], u [N, H, C, Dv], q_decayed, k_tail [N, H, C, Dk], m [N, H, C, C], gamma [N, H, Dk] f32,
    starts [NS, H, Dv, Dk] f32, state [SLOTS, H, Dv, Dk] f32, gate [T, H*Dv], norm_weight [Dv] f32
    -> y [T, H*Dv], new_state as state.
    """

    EQUATION = "3.7,3.5"
    w: Operand[Tensor]
    u: Operand[Tensor]
    q_decayed: Operand[Tensor]
    k_tail: Operand[Tensor]
    m: Operand[Tensor]
    gamma: Operand[Tensor]
    starts: Operand[Tensor]
    state: Operand[Tensor]
    gate: Operand[Tensor]
    norm_weight: Operand[Tensor]
    batch: Operand[BatchType]
    eps: FloatAttr
    y: Result[Tensor]
    new_state: Result[Tensor]

    def faults(self) -> Iterator[Fault]:
        yield ranked("w", self.w, 4)
        yield ranked("u", self.u, 4)
        _, heads, chunk, key = shape(self.w)
        value = shape(self.u)[-1]
        yield shaped("u", self.u, None, heads, chunk, value)
        for name in ("q_decayed", "k_tail"):
            yield same(name, self.w, getattr(self, name))
        yield shaped("m", self.m, None, heads, chunk, chunk)
        yield shaped("gamma", self.gamma, None, heads, key)
        yield shaped("starts", self.starts, None, heads, value, key)
        yield same("state", self.starts, self.state)
        yield same("new_state", self.state, self.new_state)
        yield shaped("gate", self.gate, None, (heads or 0) * (value or 0))
        yield shaped("norm_weight", self.norm_weight, value)
        yield shaped("y", self.y, None, (heads or 0) * (value or 0))
        yield positive("eps", self.eps.value)


class Decode(KdaOp, name="decode"):
    """One token of every sequence, whole: conv, SiLU, norms, gate, state step, gated norm, both states updated.

    With ``f_weight`` (optional) the decay's logits are its product with f, in f32, as a low-rank map makes them.

    Shapes: qkv [S, 2*H*Dk + H*Dv], f [S, H*Dk] (with f_weight [H*Dk, R]: [S, R]), beta [S, H] (logits), gate [S, H*Dv],
    conv_weight [2*H*Dk + H*Dv, W] f32, conv_state [SLOTS, W-1, 2*H*Dk + H*Dv], a_log [H] f32,
    dt_bias [H*Dk] f32, norm_weight [Dv] f32,
    state [SLOTS, H, Dv, Dk] f32 -> y [S, H*Dv], new_conv_state as conv_state, new_state as state.
    """

    OPTIONAL = ("lower_bound",)
    EQUATION = "3.2,3.3,3.4,3.5"
    qkv: Operand[Tensor]
    f: Operand[Tensor]
    beta: Operand[Tensor]
    gate: Operand[Tensor]
    conv_weight: Operand[Tensor]
    conv_state: Operand[Tensor]
    a_log: Operand[Tensor]
    dt_bias: Operand[Tensor]
    norm_weight: Operand[Tensor]
    state: Operand[Tensor]
    batch: Operand[BatchType]
    num_heads: IntegerAttr
    q_scale: FloatAttr
    l2_eps: FloatAttr
    norm_eps: FloatAttr
    y: Result[Tensor]
    new_conv_state: Result[Tensor]
    new_state: Result[Tensor]
    f_weight: Operand[Tensor] | None = None

    def faults(self) -> Iterator[Fault]:
        heads = self.num_heads.value
        low = self.f_weight
        yield from _input_faults(self, heads, shape(self.f)[-1] if low is None else shape(low)[0])
        yield ranked("state", self.state, 4)
        _, state_heads, value, key = shape(self.state)
        yield want("heads of the state", heads, state_heads)
        if low is None:
            yield shaped("f", self.f, None, heads * (key or 0))
        else:
            yield shaped("f_weight", low, heads * (key or 0), shape(self.f)[-1])
        yield shaped("gate", self.gate, None, heads * (value or 0))
        yield want("columns of qkv", heads * (2 * (key or 0) + (value or 0)), shape(self.qkv)[-1])
        yield shaped("norm_weight", self.norm_weight, value)
        yield shaped("y", self.y, None, heads * (value or 0))
        yield typed("y", self.y, *FLOATS)
        yield same("new_conv_state", self.conv_state, self.new_conv_state)
        yield same("new_state", self.state, self.new_state)
        yield positive("norm_eps", self.norm_eps.value)
