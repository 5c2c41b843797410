"""KDA and MLA layers as graph ops (spec sections 3 and 4)."""

from __future__ import annotations

from typing import Any

from k3compiler.config import L2_NORM_EPS, LORA_NORM_EPS, KdaConfig, MlaConfig, ModelConfig
from k3compiler.dialects import k3
from k3compiler.dialects.k3.source import (
    Source,
    concat_source,
    reshape_source,
    tensor_source,
)
from k3compiler.graph.emitter import Emitter


def kda_mixer(e: Emitter, config: ModelConfig, x: Any, conv: Any, state: Any) -> tuple[Any, ...]:
    """``x [T, D]`` -> output ``[T, D]``, new conv state, new state."""
    c, width = config.kda, config.kda.num_heads * config.kda.head_dim
    name = f"{e.prefix}.self_attn"
    branches = [e.linear(x, f"{name}.{p}_proj", width) for p in "qkv"]
    qkv = e.op(k3.Concat, [branches], [e.rows(3 * width)]).y
    taps = _conv_weight(e, c, width)
    conv_op = e.op(k3.ShortConv, [qkv, taps, conv, e.batch], [qkv.type, conv.type])
    q, k, v = e.columns(e.op(k3.Silu, [conv_op.y], [qkv.type]).y, width, width, width)
    q = _l2_norm(e, q, c, scale=c.head_dim**-0.5)
    k = _l2_norm(e, k, c, scale=1.0)
    g = _decay(e, config, x, width)
    beta = e.sigmoid(e.linear(x, f"{name}.b_proj", c.num_heads))
    step = e.op(k3.KdaRecurrence, [q, k, v, g, beta, state, e.batch], [v.type, state.type])
    gate = _out_gate(e, c, x, width)
    norm = e.weight(f"{name}.o_norm.weight", c.head_dim, element_type="f32")
    o = e.op(
        k3.GatedRmsNorm,
        [step.o, gate, norm],
        [v.type],
        num_heads=c.num_heads,
        eps=config.rms_eps,
    ).y
    return e.linear(o, f"{name}.o_proj", config.hidden_dim), conv_op.new_state, step.new_state


def _conv_weight(e: Emitter, c: KdaConfig, width: int) -> Any:
    name = f"{e.prefix}.self_attn"
    parts = [
        reshape_source([width, c.conv_size], tensor_source(f"{name}.{p}_conv1d.weight"))
        for p in "qkv"
    ]
    return e.weight(
        f"{name}.qkv_conv1d.weight",
        3 * width,
        c.conv_size,
        element_type="f32",
        source=concat_source(parts),
    )


def _l2_norm(e: Emitter, x: Any, c: KdaConfig, scale: float) -> Any:
    return e.op(k3.L2Norm, [x], [x.type], num_heads=c.num_heads, eps=L2_NORM_EPS, scale=scale).y


def _decay(e: Emitter, config: ModelConfig, x: Any, width: int) -> Any:
    """Log-decay from the low-rank f; A_log is narrowed to the heads, never spread over channels."""
    c = config.kda
    name = f"{e.prefix}.self_attn"
    f = e.linear(e.linear(x, f"{name}.f_a_proj", c.head_dim), f"{name}.f_b_proj", width)
    a_log = e.weight(
        f"{name}.A_log", c.num_heads, element_type="f32", source=_a_log_source(e, config)
    )
    dt_bias = e.weight(f"{name}.dt_bias", width, element_type="f32")
    return e.op(
        k3.KdaGate, [f, a_log, dt_bias], [e.rows(width, "f32")], lower_bound=c.gate_lower_bound
    ).g


def _a_log_source(e: Emitter, config: ModelConfig) -> Source:
    """``[stored]`` (or ``[1, 1, stored, 1]``) narrowed to the heads."""
    name, heads = f"{e.prefix}.self_attn.A_log", config.kda.num_heads
    if config.kda.a_log_rank == 4:
        return reshape_source([heads], tensor_source(name, [None, None, [0, heads], None]))
    return tensor_source(name, [[0, heads]])


def _out_gate(e: Emitter, c: KdaConfig, x: Any, width: int) -> Any:
    name = f"{e.prefix}.self_attn"
    if c.full_rank_gate:
        return e.linear(x, f"{name}.g_proj", width)
    return e.linear(e.linear(x, f"{name}.g_a_proj", c.head_dim), f"{name}.g_b_proj", width)


def mla_mixer(e: Emitter, config: ModelConfig, x: Any, cache: Any) -> tuple[Any, Any]:
    """``x [T, D]`` -> output ``[T, D]``, new cache."""
    c, name = config.mla, f"{e.prefix}.self_attn"
    q = _query(e, c, x)
    kv_a = e.linear(x, f"{name}.kv_a_proj_with_mqa", c.kv_lora_rank + c.rope_dim)
    latent, rope = e.columns(kv_a, c.kv_lora_rank, c.rope_dim)
    latent = e.rms_norm(latent, f"{name}.kv_a_layernorm", LORA_NORM_EPS)
    cache = e.op(k3.MlaCacheWrite, [latent, rope, cache, e.batch], [cache.type]).new_cache
    kv_b = e.weight(
        f"{name}.kv_b_proj.weight", c.num_heads * (c.nope_dim + c.v_dim), c.kv_lora_rank
    )
    o = e.op(
        k3.MlaAttention,
        [q, kv_b, cache, e.batch],
        [e.rows(c.num_heads * c.v_dim)],
        num_heads=c.num_heads,
        nope_dim=c.nope_dim,
        rope_dim=c.rope_dim,
        v_dim=c.v_dim,
        scale=(c.nope_dim + c.rope_dim) ** -0.5,
    ).o
    if c.output_gate:
        gate = e.linear(x, f"{name}.g_proj", c.num_heads * c.v_dim)
        o = e.op(k3.MulSigmoid, [o, gate], [o.type]).y
    return e.linear(o, f"{name}.o_proj", config.hidden_dim), cache


def _query(e: Emitter, c: MlaConfig, x: Any) -> Any:
    name, width = f"{e.prefix}.self_attn", c.num_heads * (c.nope_dim + c.rope_dim)
    if c.q_lora_rank is None:
        return e.linear(x, f"{name}.q_proj", width)
    low = e.linear(x, f"{name}.q_a_proj", c.q_lora_rank)
    return e.linear(
        e.rms_norm(low, f"{name}.q_a_layernorm", LORA_NORM_EPS), f"{name}.q_b_proj", width
    )
