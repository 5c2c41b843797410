"""ModelConfig -> config.json, the inverse of ``graph/config_import.py``."""

from __future__ import annotations

from typing import Any

from k3compiler.config import MX_GROUP, ModelConfig

# Regexes of the released checkpoint: what compressed-tensors leaves unquantised (spec 1.3).
PLAIN_MODULES = [
    "re:.*self_attn.*",
    "re:.*shared_experts.*",
    r"re:.*mlp\.(gate|up|gate_up|down)_proj.*",
    "re:.*lm_head.*",
    "re:.*vision_tower.*",
    "re:.*mm_projector.*",
]


def config_to_json(config: ModelConfig, *, wrapper: bool = False) -> dict[str, Any]:
    """A config.json object that imports as ``config`` again.

    ``wrapper`` puts the text model under ``text_config`` as the multimodal release does; a
    text-only file has its keys at the top. ``kda.a_log_size`` is not a key of the format: it is
    read off the checkpoint.
    """
    text = _text_config(config)
    if not wrapper:
        return text
    ids = {f"{k}_token_id": text[f"{k}_token_id"] for k in ("bos", "eos", "pad")}
    return {
        "architectures": ["KimiK3ForConditionalGeneration"],
        "model_type": "kimi_k3",
        **ids,
        "tie_word_embeddings": config.tie_embeddings,
        "text_config": text | {"model_type": "kimi_linear"},
    }


def _text_config(c: ModelConfig) -> dict[str, Any]:
    is_k3 = c.name == "kimi_k3"
    keys: dict[str, Any] = {
        "architectures": ["KimiK3ForCausalLM" if is_k3 else "KimiLinearForCausalLM"],
        "model_type": c.name,
        "vocab_size": c.vocab_size,
        "hidden_size": c.hidden_dim,
        "intermediate_size": c.dense_dim,
        "num_hidden_layers": c.num_layers,
        "num_attention_heads": c.mla.num_heads,
        "num_key_value_heads": c.mla.num_heads,
        "hidden_act": c.activation,
        "rms_norm_eps": c.rms_eps,
        "max_position_embeddings" if is_k3 else "model_max_length": c.max_context,
        "bos_token_id": c.bos_id,
        "eos_token_id": c.eos_id,
        "pad_token_id": c.pad_id,
        "tie_word_embeddings": c.tie_embeddings,
        "linear_attn_config": _linear_attn_config(c),
    }
    if c.activation == "situ":
        keys |= {
            "activation_situ_beta": c.situ_beta,
            "activation_situ_linear_beta": c.situ_linear_beta,
        }
    if c.attn_res_block is not None:
        keys["attn_res_block_size"] = c.attn_res_block
    return keys | _mla_keys(c, is_k3) | _moe_keys(c, is_k3)


def _linear_attn_config(c: ModelConfig) -> dict[str, Any]:
    kda, layers = c.kda, range(c.num_layers)
    keys: dict[str, Any] = {
        "kda_layers": [n + 1 for n in layers if not c.is_mla(n)],
        "full_attn_layers": [n + 1 for n in layers if c.is_mla(n)],
        "num_heads": kda.num_heads,
        "head_dim": kda.head_dim,
        "short_conv_kernel_size": kda.conv_size,
    }
    if kda.full_rank_gate:
        keys["use_full_rank_gate"] = True
    if kda.gate_lower_bound is not None:
        keys["gate_lower_bound"] = kda.gate_lower_bound
    return keys


def _mla_keys(c: ModelConfig, is_k3: bool) -> dict[str, Any]:
    mla = c.mla
    gate = {"mla_use_output_gate": mla.output_gate} if is_k3 else {}
    return {
        "q_lora_rank": mla.q_lora_rank,
        "kv_lora_rank": mla.kv_lora_rank,
        "qk_nope_head_dim": mla.nope_dim,
        "qk_rope_head_dim": mla.rope_dim,
        "v_head_dim": mla.v_dim,
        "mla_use_nope": True,
    } | gate


def _moe_keys(c: ModelConfig, is_k3: bool) -> dict[str, Any]:
    moe = c.moe
    if moe is None:
        return {}
    keys: dict[str, Any] = {
        "num_experts": moe.num_experts,
        "num_experts_per_token": moe.top_k,
        "num_shared_experts": moe.num_shared,
        "moe_intermediate_size": moe.expert_dim,
        "moe_router_activation_func": "sigmoid",
        "moe_renormalize": moe.renormalize,
        "use_grouped_topk": True,
        "num_expert_group": 1,
        "topk_group": 1,
        "routed_scaling_factor": moe.scale,
        "first_k_dense_replace": c.num_dense,
        "moe_layer_freq": 1,
    }
    if moe.latent_dim is not None:
        keys |= {
            "routed_expert_hidden_size": moe.latent_dim,
            "latent_moe_use_norm": moe.latent_norm,
        }
    if moe.expert_format == "mxfp4":
        keys["quantization_config"] = mxfp4_quantization_config()
    return keys


def mxfp4_quantization_config() -> dict[str, Any]:
    """The ``quantization_config`` of spec 1.3."""
    weights = {
        "num_bits": 4,
        "type": "float",
        "strategy": "group",
        "group_size": MX_GROUP,
        "symmetric": True,
        "dynamic": False,
        "observer": "minmax",
        "scale_dtype": "uint8",
        "zp_dtype": None,
    }
    group = {
        "targets": ["Linear"],
        "input_activations": None,
        "output_activations": None,
        "weights": weights,
        "format": "mxfp4-pack-quantized",
    }
    return {
        "quant_method": "compressed-tensors",
        "format": "mxfp4-pack-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": PLAIN_MODULES,
    }
