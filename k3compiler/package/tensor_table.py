"""The checkpoint's tensor table: names, shapes and stored types (spec section 10)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

from k3compiler.config import MX_GROUP, KdaConfig, MlaConfig, ModelConfig, MoeConfig
from k3compiler.dtypes import itemsize

ExpertFormat = Literal["mxfp4", "plain"]


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor as the released checkpoint stores it.

    ``dtype`` is ``bf16``, ``f32`` (the parameters that must not be narrowed) or ``i8`` (bytes).
    """

    shape: tuple[int, ...]
    dtype: str = "bf16"

    @property
    def num_bytes(self) -> int:
        return prod(self.shape) * itemsize(self.dtype)


Named = Iterator[tuple[str, TensorSpec]]


def expected_tensors(
    config: ModelConfig, *, experts: ExpertFormat | None = None
) -> dict[str, TensorSpec]:
    """Every text tensor by canonical name (no ``language_model.`` prefix).

    ``experts`` overrides the config's expert format.
    """
    return dict(_model(config, experts))


def _model(config: ModelConfig, experts: ExpertFormat | None) -> Named:
    dim = config.hidden_dim
    yield "model.embed_tokens.weight", TensorSpec((config.vocab_size, dim))
    for layer in range(config.num_layers):
        for name, spec in _layer(config, layer, experts):
            yield f"model.layers.{layer}.{name}", spec
    if config.attn_res_block is not None:
        yield from _res_site("model.output_attn_res", dim)
    yield "model.norm.weight", TensorSpec((dim,))
    if not config.tie_embeddings:
        yield "lm_head.weight", TensorSpec((config.vocab_size, dim))


def _layer(config: ModelConfig, layer: int, experts: ExpertFormat | None) -> Named:
    dim = config.hidden_dim
    yield "input_layernorm.weight", TensorSpec((dim,))
    yield "post_attention_layernorm.weight", TensorSpec((dim,))
    if config.attn_res_block is not None:
        yield from _res_site("self_attention_res", dim)
        yield from _res_site("mlp_res", dim)
    mixer = _mla(config.mla, dim) if config.is_mla(layer) else _kda(config.kda, dim)
    for name, spec in mixer:
        yield f"self_attn.{name}", spec
    if config.is_dense(layer):
        yield from _mlp("mlp", dim, config.dense_dim)
    else:
        assert config.moe is not None
        for name, spec in _moe(config.moe, dim, experts or config.moe.expert_format):
            yield f"block_sparse_moe.{name}", spec


def _res_site(name: str, dim: int) -> Named:
    yield f"{name}_norm.weight", TensorSpec((dim,))
    yield f"{name}_proj.weight", TensorSpec((1, dim))


def _kda(c: KdaConfig, dim: int) -> Named:
    width = c.num_heads * c.head_dim
    for p in "qkv":
        yield f"{p}_proj.weight", TensorSpec((width, dim))
        yield f"{p}_conv1d.weight", TensorSpec((width, 1, c.conv_size), "f32")
    yield from _low_rank("f", dim, c.head_dim, width)
    yield "b_proj.weight", TensorSpec((c.num_heads, dim))
    if c.full_rank_gate:
        yield "g_proj.weight", TensorSpec((width, dim))
    else:
        yield from _low_rank("g", dim, c.head_dim, width)
    yield "A_log", TensorSpec(c.a_log_shape, "f32")
    yield "dt_bias", TensorSpec((width,), "f32")
    yield "o_norm.weight", TensorSpec((c.head_dim,), "f32")
    yield "o_proj.weight", TensorSpec((dim, width))


def _low_rank(name: str, dim: int, rank: int, width: int) -> Named:
    yield f"{name}_a_proj.weight", TensorSpec((rank, dim))
    yield f"{name}_b_proj.weight", TensorSpec((width, rank))


def _mla(c: MlaConfig, dim: int) -> Named:
    q_width = c.num_heads * (c.nope_dim + c.rope_dim)
    if c.q_lora_rank is None:
        yield "q_proj.weight", TensorSpec((q_width, dim))
    else:
        yield "q_a_proj.weight", TensorSpec((c.q_lora_rank, dim))
        yield "q_a_layernorm.weight", TensorSpec((c.q_lora_rank,))
        yield "q_b_proj.weight", TensorSpec((q_width, c.q_lora_rank))
    yield "kv_a_proj_with_mqa.weight", TensorSpec((c.kv_lora_rank + c.rope_dim, dim))
    yield "kv_a_layernorm.weight", TensorSpec((c.kv_lora_rank,))
    kv_width = c.num_heads * (c.nope_dim + c.v_dim)
    yield "kv_b_proj.weight", TensorSpec((kv_width, c.kv_lora_rank))
    if c.output_gate:
        yield "g_proj.weight", TensorSpec((c.num_heads * c.v_dim, dim))
    yield "o_proj.weight", TensorSpec((dim, c.num_heads * c.v_dim))


def _mlp(name: str, dim: int, width: int) -> Named:
    yield f"{name}.gate_proj.weight", TensorSpec((width, dim))
    yield f"{name}.up_proj.weight", TensorSpec((width, dim))
    yield f"{name}.down_proj.weight", TensorSpec((dim, width))


def _moe(c: MoeConfig, dim: int, experts: ExpertFormat) -> Named:
    yield "gate.weight", TensorSpec((c.num_experts, dim))
    yield "gate.e_score_correction_bias", TensorSpec((c.num_experts,), "f32")
    if c.latent_dim is not None:
        yield "routed_expert_down_proj.weight", TensorSpec((c.latent_dim, dim))
        if c.latent_norm:
            yield "routed_expert_norm.weight", TensorSpec((c.latent_dim,))
        yield "routed_expert_up_proj.weight", TensorSpec((dim, c.latent_dim))
    if c.num_shared:
        yield from _mlp("shared_experts", dim, c.num_shared * c.expert_dim)
    inner = c.latent_dim or dim
    shapes = {"w1": (c.expert_dim, inner), "w3": (c.expert_dim, inner), "w2": (inner, c.expert_dim)}
    for e in range(c.num_experts):
        for matrix, (rows, cols) in shapes.items():
            yield from _expert(f"experts.{e}.{matrix}", rows, cols, experts)


def _expert(name: str, rows: int, cols: int, experts: ExpertFormat) -> Named:
    if experts == "plain":
        yield f"{name}.weight", TensorSpec((rows, cols))
    else:
        yield f"{name}.weight_packed", TensorSpec((rows, cols // 2), "i8")
        yield f"{name}.weight_scale", TensorSpec((rows, cols // MX_GROUP), "i8")


def vision_tensors(vision: dict[str, Any]) -> dict[str, TensorSpec]:
    """The vision tower and projector of a ``vision_config`` object (spec 8.3)."""
    return dict(_vision(vision))


def _vision(v: dict[str, Any]) -> Named:
    dim, qkv, inner = v["vt_hidden_size"], v["qkv_hidden_size"], v["vt_intermediate_size"]
    patch, (merge_h, merge_w) = v["patch_size"], v["merge_kernel_size"]
    grid = (v["init_pos_emb_height"], v["init_pos_emb_width"])
    merged = v["mm_hidden_size"] * merge_h * merge_w
    tower = "vision_tower"
    yield f"{tower}.patch_embed.proj.weight", TensorSpec((dim, 3, patch, patch))
    yield f"{tower}.patch_embed.pos_emb.weight", TensorSpec((*grid, dim))
    for n in range(v["vt_num_hidden_layers"]):
        block = f"{tower}.encoder.blocks.{n}"
        yield f"{block}.norm0.weight", TensorSpec((dim,))
        yield f"{block}.norm1.weight", TensorSpec((dim,))
        yield f"{block}.wqkv.weight", TensorSpec((3 * qkv, dim))
        yield f"{block}.wo.weight", TensorSpec((dim, qkv))
        yield f"{block}.mlp.fc0.weight", TensorSpec((inner, dim))
        yield f"{block}.mlp.fc1.weight", TensorSpec((dim, inner))
    yield f"{tower}.encoder.final_layernorm.weight", TensorSpec((dim,))
    yield "mm_projector.proj.0.weight", TensorSpec((merged, merged))
    yield "mm_projector.proj.2.weight", TensorSpec((v["text_hidden_size"], merged))
    yield "mm_projector.post_norm.weight", TensorSpec((v["text_hidden_size"],))
