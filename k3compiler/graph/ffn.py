"""Dense FFN, shared experts and (Latent)MoE as graph ops (spec section 5)."""

from __future__ import annotations

from typing import Any

from k3compiler.config import MX_GROUP, ModelConfig, MoeConfig
from k3compiler.dialects import k3
from k3compiler.dialects.k3.source import stack_source
from k3compiler.graph.emitter import Emitter
from k3compiler.ir.dialect import shape


def activation(e: Emitter, config: ModelConfig, gate: Any, up: Any) -> Any:
    """SiTU, or SiLU times up."""
    if config.activation == "silu":
        return e.op(k3.SiluMul, [gate, up], [gate.type]).y
    caps = {"beta": config.situ_beta, "linear_beta": config.situ_linear_beta}
    return e.op(k3.Situ, [gate, up], [gate.type], **caps).y


def gated_mlp(e: Emitter, config: ModelConfig, y: Any, name: str, width: int) -> Any:
    """``down(act(gate y, up y))``."""
    gate = e.linear(y, f"{name}.gate_proj", width)
    up = e.linear(y, f"{name}.up_proj", width)
    return e.linear(activation(e, config, gate, up), f"{name}.down_proj", config.hidden_dim)


def ffn(e: Emitter, config: ModelConfig, y: Any, layer: int) -> Any:
    """The layer's FFN: ``y [T, D]`` -> ``[T, D]``."""
    if config.is_dense(layer):
        return gated_mlp(e, config, y, f"{e.prefix}.mlp", config.dense_dim)
    assert config.moe is not None
    return _moe(e, config, config.moe, y)


def _moe(e: Emitter, config: ModelConfig, c: MoeConfig, y: Any) -> Any:
    """Router and shared experts read y; the routed experts read its latent where there is one."""
    name = f"{e.prefix}.block_sparse_moe"
    weights, ids = _router(e, c, y)
    z = y if c.latent_dim is None else e.linear(y, f"{name}.routed_expert_down_proj", c.latent_dim)
    r = _experts(e, config, c, z, weights, ids)
    if c.latent_dim is not None:
        if c.latent_norm:
            r = e.rms_norm(r, f"{name}.routed_expert_norm", config.rms_eps)
        r = e.linear(r, f"{name}.routed_expert_up_proj", config.hidden_dim)
    if not c.num_shared:
        return r
    width = c.num_shared * c.expert_dim
    return e.add(r, gated_mlp(e, config, y, f"{name}.shared_experts", width))


def _router(e: Emitter, c: MoeConfig, y: Any) -> tuple[Any, Any]:
    name = f"{e.prefix}.block_sparse_moe.gate"
    scores = e.sigmoid(e.linear(y, name, c.num_experts, "f32"))
    bias = e.weight(f"{name}.e_score_correction_bias", c.num_experts, element_type="f32")
    routed = e.op(
        k3.Route,
        [scores, bias],
        [e.rows(c.top_k, "f32"), e.rows(c.top_k, "i32")],
        top_k=c.top_k,
        renormalize=c.renormalize,
        scale=c.scale,
    )
    return routed.weights, routed.ids


def _experts(e: Emitter, config: ModelConfig, c: MoeConfig, z: Any, weights: Any, ids: Any) -> Any:
    width = shape(z)[-1] or 0
    matrices = {
        "w1": (c.expert_dim, width),
        "w3": (c.expert_dim, width),
        "w2": (width, c.expert_dim),
    }
    packed = c.expert_format == "mxfp4"
    values = [
        _stacked(e, c, m, "weight_packed" if packed else "weight", *n) for m, n in matrices.items()
    ]
    scales = [
        _stacked(e, c, m, "weight_scale", *n) if packed else None for m, n in matrices.items()
    ]
    situ = config.activation == "situ"
    return e.op(
        k3.Experts,
        [z, ids, weights, *values, *scales],
        [z.type],
        format=c.expert_format,
        activation=config.activation,
        beta=config.situ_beta if situ else None,
        linear_beta=config.situ_linear_beta if situ else None,
    ).r


def _stacked(e: Emitter, c: MoeConfig, matrix: str, leaf: str, rows: int, columns: int) -> Any:
    """All experts' tensors of one kind along a new axis 0."""
    name = f"{e.prefix}.block_sparse_moe.experts"
    columns = {
        "weight": columns,
        "weight_packed": columns // 2,
        "weight_scale": columns // MX_GROUP,
    }[leaf]
    kind = None if leaf == "weight" else "i8"
    return e.weight(
        f"{name}.{matrix}.{leaf}",
        c.num_experts,
        rows,
        columns,
        element_type=kind,
        source=stack_source(f"{name}.{{e}}.{matrix}.{leaf}", c.num_experts),
    )
