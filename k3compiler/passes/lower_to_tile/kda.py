"""Launches of KDA: the chunked prefill and the one-kernel decode step."""

from __future__ import annotations

from typing import Any

from k3compiler.ir.dialect import optional, shape
from k3compiler.ir.location import origin_of
from k3compiler.passes.lower_to_tile.basics import columns_of, dtype_of, power_of_two, result
from k3compiler.passes.lower_to_tile.builder import PlanBuilder
from k3compiler.passes.lower_to_tile.refs import Ref


def _projected(op: Any, plan: PlanBuilder, k_width: int) -> tuple[Ref, dict[str, Any]]:
    """The fused input rows, and where q, k, v and beta lie in them."""
    qkv, beta = plan.ref(op.qkv), plan.ref(op.beta)
    assert qkv.name == beta.name, "q|k|v and beta come from one projection"
    columns = {
        "in_cols": qkv.width,
        "q_offset": qkv.offset,
        "k_offset": qkv.offset + k_width,
        "v_offset": qkv.offset + 2 * k_width,
        "beta_offset": beta.offset,
    }
    return qkv, columns


def _head_dims(heads: int, k_width: int, v_width: int) -> dict[str, Any]:
    k_dim, v_dim = k_width // heads, v_width // heads
    return {
        "heads": heads,
        "k_dim": k_dim,
        "v_dim": v_dim,
        "block_k": power_of_two(k_dim),
        "block_v": power_of_two(v_dim),
    }


def _state_dims(ref: Ref) -> tuple[int, int, int]:
    """(heads, Dv, Dk) of a state buffer."""
    heads, v_dim, k_dim = ref.shape[1:]
    assert isinstance(heads, int) and isinstance(v_dim, int) and isinstance(k_dim, int)
    return heads, v_dim, k_dim


def inputs(plan: PlanBuilder, op: Any) -> None:
    f, conv = plan.ref(op.f), plan.ref(op.conv_state)
    x, columns = _projected(op, plan, f.width)
    heads, rows = op.num_heads.value, x.rows
    v_width = columns_of(op.v)
    dims = _head_dims(heads, f.width, v_width) | columns
    dims |= {
        "conv_size": columns_of(op.conv_weight),
        "lower_bound": optional(op, "lower_bound"),
        "dtype": x.dtype,
    }
    k_dim, v_dim = dims["k_dim"], dims["v_dim"]
    arguments = {
        "x": x,
        "f": f,
        "conv_w": plan.ref(op.conv_weight),
        "a_log": plan.ref(op.a_log),
        "dt_bias": plan.ref(op.dt_bias),
        "kda_conv": conv,
        "q": result(plan, op.q, "q", rows, heads, k_dim),
        "k": result(plan, op.k, "k", rows, heads, k_dim),
        "v": result(plan, op.v, "v", rows, heads, v_dim),
        "g": result(plan, op.g, "g", rows, heads, k_dim),
        "beta": result(plan, op.beta_out, "beta", rows, heads),
    }
    plan.launch(origin_of(op), "kda_inputs", dims, arguments)


def conv_state(plan: PlanBuilder, op: Any) -> None:
    x, conv = plan.ref(op.qkv), plan.bind(op.new_state, plan.ref(op.conv_state))
    taps, channels = shape(op.conv_state)[1:]
    assert taps is not None and channels is not None
    dims = {
        "channels": channels,
        "block": power_of_two(channels, at_most=512),
        "conv_size": taps + 1,
        "dtype": x.dtype,
        "in_cols": x.width,
        "qkv_offset": x.offset,
    }
    plan.launch(origin_of(op), "kda_conv_state", dims, {"x": x, "kda_conv": conv})


def prepare(plan: PlanBuilder, op: Any) -> None:
    heads, chunk = op.num_heads.value, op.chunk_tokens.value
    k_dim, v_dim = columns_of(op.k) // heads, columns_of(op.v) // heads
    dims = {
        "heads": heads,
        "k_dim": k_dim,
        "v_dim": v_dim,
        "lower_bound": optional(op, "lower_bound"),
        "dtype": dtype_of(op.k),
    }
    chunked = ("NC", heads, chunk)
    arguments = {name: plan.ref(getattr(op, name)) for name in ("q", "k", "v", "g", "beta")} | {
        "w": result(plan, op.w, "w", *chunked, k_dim),
        "u": result(plan, op.u, "u", "NC", heads, v_dim, chunk),
        "q_decayed": result(plan, op.q_decayed, "q_decayed", *chunked, k_dim),
        "k_tail": result(plan, op.k_tail, "k_tail", *chunked, k_dim),
        "m": result(plan, op.m, "m", *chunked, chunk),
        "gamma": result(plan, op.gamma, "gamma", "NC", heads, k_dim),
    }
    plan.launch(origin_of(op), "kda_prepare", dims, arguments)


def segment_maps(plan: PlanBuilder, op: Any) -> None:
    """The first segment of a sequence starts from its slot, so this kernel reads the states too."""
    w, state = plan.ref(op.w), plan.ref(_scan_of(op.b).state)
    heads, v_dim, k_dim = _state_dims(state)
    arguments = {
        "w": w,
        "u": plan.ref(op.u),
        "k_tail": plan.ref(op.k_tail),
        "gamma": plan.ref(op.gamma),
        "kda_state": state,
        "gamma_seg": result(plan, op.gamma_seg, "gamma_seg", "NS", heads, k_dim),
        "r": plan.bind(op.r, plan.workspace("r", w.dtype, "NS", heads, k_dim, k_dim)),
        "b": result(plan, op.b, "b", "NS", heads, v_dim, k_dim),
    }
    dims = _head_dims(heads, heads * k_dim, heads * v_dim) | {"dtype": w.dtype}
    plan.launch(origin_of(op), "kda_segment_maps", dims, arguments)


def _scan_of(value: Any) -> Any:
    """The kda.scan that a segment map goes to."""
    return next(use.owner.opview for use in value.uses if use.owner.name == "kda.scan")


def scan(plan: PlanBuilder, op: Any) -> None:
    """Start states of all segments."""
    state, r = plan.ref(op.state), plan.ref(op.r)
    heads, v_dim, k_dim = _state_dims(state)
    dims = {
        "heads": heads,
        "k_dim": k_dim,
        "v_dim": v_dim,
        "block_k": power_of_two(k_dim),
        "dtype": r.dtype,
        "segmented": True,
    }
    arguments = {
        "gamma_seg": plan.ref(op.gamma_seg),
        "r": r,
        "b": plan.ref(op.b),
        "kda_state": state,
        "seg_state": result(plan, op.starts, "starts", "NS", heads, v_dim, k_dim),
    }
    plan.launch(origin_of(op), "kda_scan", dims, arguments)


def output(plan: PlanBuilder, op: Any) -> None:
    """The segments' outputs, the states after each sequence, and the checkpoints."""
    w, gate = plan.ref(op.w), plan.ref(op.gate)
    state = plan.bind(op.new_state, plan.ref(op.state))
    heads, v_dim, k_dim = _state_dims(state)
    dims = _head_dims(heads, heads * k_dim, heads * v_dim)
    dims |= {
        "eps": op.eps.value,
        "dtype": w.dtype,
        "in_cols": gate.width,
        "gate_offset": None if gate.whole else gate.offset,
    }
    names = ("w", "u", "q_decayed", "k_tail", "m", "gamma")
    arguments = {name: plan.ref(getattr(op, name)) for name in names} | {
        "seg_state": plan.ref(op.starts),
        "kda_state": state,
        "gate" if gate.whole else "x": gate,
        "norm_w": plan.ref(op.norm_weight),
        "o": result(plan, op.y, "attended", gate.rows),
    }
    plan.launch(origin_of(op), "kda_output", dims, arguments)


def _decay(plan: PlanBuilder, op: Any) -> tuple[dict[str, Ref], dict[str, Any]]:
    """Where the decay's logits come from, and its dimensions."""
    f = plan.ref(op.f)
    if op.f_weight is None:
        return {"f": f}, {}
    dims = {"rank": f.columns, "low_cols": f.width, "low_offset": f.offset}
    dims["block_rank"] = power_of_two(f.columns, at_most=64)
    return {"low": f, "f_w": plan.ref(op.f_weight)}, dims


def decode(plan: PlanBuilder, op: Any) -> None:
    gate, (decay, decay_dims) = plan.ref(op.gate), _decay(plan, op)
    conv, state = plan.bind(op.new_conv_state, plan.ref(op.conv_state)), plan.ref(op.state)
    plan.bind(op.new_state, state)
    heads, v_dim, k_dim = _state_dims(state)
    x, columns = _projected(op, plan, heads * k_dim)
    is_fused = gate.name == x.name
    dims = _head_dims(heads, heads * k_dim, heads * v_dim) | columns | decay_dims
    dims |= {
        "conv_size": columns_of(op.conv_weight),
        "lower_bound": optional(op, "lower_bound"),
        "eps": op.norm_eps.value,
        "dtype": x.dtype,
        "gate_offset": gate.offset if is_fused else None,
    }
    arguments = {
        "x": x,
        **decay,
        "conv_w": plan.ref(op.conv_weight),
        "a_log": plan.ref(op.a_log),
        "dt_bias": plan.ref(op.dt_bias),
        "norm_w": plan.ref(op.norm_weight),
        "kda_conv": conv,
        "kda_state": state,
        "o": result(plan, op.y, "attended", x.rows),
    } | ({} if is_fused else {"gate": gate})
    plan.launch(origin_of(op), "kda_decode", dims, arguments)
