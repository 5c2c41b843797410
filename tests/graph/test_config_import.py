"""Every key is read or refused by name; presets and small configs import as they were written."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from k3compiler.config import ModelConfig
from k3compiler.errors import K3Error
from k3compiler.graph.config_import import (
    PRESETS,
    load_config,
    load_preset,
    preset_json,
    resolve_model,
)
from k3compiler.reference.config_json import config_to_json
from k3compiler.reference.random_checkpoint import make_checkpoint
from k3compiler.reference.tiny import TINY_CONFIGS, tiny_config


def edited(path: str, value: Any, preset: str = "kimi-k3") -> dict[str, Any]:
    """The preset with one key (dots for nesting) set, or removed by ``...``."""
    data = copy.deepcopy(preset_json(preset))
    *parents, key = path.split(".")
    inner = data
    for parent in parents:
        inner = inner[parent]
    if value is ...:
        del inner[key]
    else:
        inner[key] = value
    return data


def refused(data: dict[str, Any]) -> K3Error:
    with pytest.raises(K3Error) as caught:
        load_config(data)
    return caught.value


def test_k3_preset() -> None:
    config = load_preset("kimi-k3")
    assert config.mla_layers == (*range(3, 92, 4), 92) and config.num_layers == 93
    assert (config.hidden_dim, config.attn_res_block, config.num_dense) == (7168, 12, 1)
    assert (config.bos_id, config.eos_id, config.pad_id) == (163584, 163586, 163839)
    assert config.kda.gate_lower_bound == -5.0 and config.kda.a_log_size == 128
    assert config.moe is not None and config.moe.latent_norm
    assert config.moe.expert_format == "mxfp4"


def test_linear_48b_preset() -> None:
    config = load_preset("kimi-linear-48b")
    assert config.name == "kimi_linear" and len(config.mla_layers) == 7
    assert config.kda.gate_lower_bound is None and not config.kda.full_rank_gate
    assert config.attn_res_block is None and config.activation == "silu"
    assert config.mla.q_lora_rank is None and not config.mla.output_gate
    assert config.moe is not None and config.moe.latent_dim is None
    assert config.moe.scale == 2.446 and config.moe.expert_format == "plain"


CONFIGS = [load_preset(n) for n in PRESETS] + [make() for make in TINY_CONFIGS.values()]


@pytest.mark.parametrize("config", CONFIGS)
def test_writing_and_reading_again(config: ModelConfig) -> None:
    assert load_config(json.loads(json.dumps(config_to_json(config)))) == config
    assert ModelConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    if config.name == "kimi_k3":
        assert load_config(config_to_json(config, wrapper=True)) == config


def test_a_text_only_export_that_says_kimi_linear_is_k3() -> None:
    text = preset_json("kimi-k3")["text_config"]
    assert load_config(text).name == "kimi_k3"


def test_the_0_40b_development_checkpoint() -> None:
    """Spec 1.5: small widths, softplus gate (no bound key), other token ids, a small tower."""
    data = preset_json("kimi-k3")
    text, vision = data["text_config"], data["vision_config"]
    text |= {"hidden_size": 1024, "num_hidden_layers": 8, "intermediate_size": 2048}
    text |= {"num_attention_heads": 8, "num_key_value_heads": 8, "moe_intermediate_size": 256}
    text |= {"routed_expert_hidden_size": 512, "num_experts": 8, "num_experts_per_token": 2}
    text |= {"num_shared_experts": 1, "q_lora_rank": 256, "kv_lora_rank": 128, "v_head_dim": 64}
    text |= {"qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "attn_res_block_size": 4}
    text["linear_attn_config"] = {
        "kda_layers": [1, 2, 3, 5, 6, 7],
        "full_attn_layers": [4, 8],
        "num_heads": 8,
        "head_dim": 32,
        "short_conv_kernel_size": 4,
        "use_full_rank_gate": True,
    }
    vision |= {"vt_hidden_size": 256, "vt_intermediate_size": 512, "vt_num_attention_heads": 4}
    vision |= {"vt_num_hidden_layers": 2, "mm_hidden_size": 256, "text_hidden_size": 1024}
    data |= {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    config = load_config(data)
    assert config.kda.gate_lower_bound is None and config.kda.full_rank_gate
    assert config.mla_layers == (3, 7) and (config.bos_id, config.eos_id, config.pad_id) == (
        1,
        2,
        0,
    )


def test_the_wrapper_hands_its_ids_down() -> None:
    assert load_config(edited("text_config.eos_token_id", 163586)).eos_id == 163586
    fault = refused(edited("text_config.eos_token_id", 2))
    assert fault.code == "K3-G003" and "eos_token_id" in fault.where


# Keys of spec 1.2 whose loss must not go unnoticed.
REQUIRED = """vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads
hidden_act activation_situ_beta activation_situ_linear_beta rms_norm_eps max_position_embeddings
kv_lora_rank qk_nope_head_dim qk_rope_head_dim v_head_dim num_experts_per_token
moe_intermediate_size first_k_dense_replace linear_attn_config linear_attn_config.kda_layers
linear_attn_config.full_attn_layers linear_attn_config.num_heads linear_attn_config.head_dim
linear_attn_config.short_conv_kernel_size""".split()


@pytest.mark.parametrize("key", REQUIRED)
def test_missing_keys_are_named(key: str) -> None:
    fault = refused(edited(f"text_config.{key}", ...))
    assert fault.code == "K3-G001" and fault.where == f"text_config.{key}"
    assert "no such key" in fault.found


@pytest.mark.parametrize("key", REQUIRED)
def test_values_of_the_wrong_kind_are_named(key: str) -> None:
    fault = refused(edited(f"text_config.{key}", "many"))
    assert fault.code in ("K3-G001", "K3-G002") and fault.where == f"text_config.{key}"
    assert "many" in fault.found


def test_optional_keys() -> None:
    assert (
        load_config(edited("text_config.activation_situ_linear_beta", None)).situ_linear_beta
        is None
    )
    assert load_config(edited("text_config.q_lora_rank", None)).mla.q_lora_rank is None
    softplus = load_config(edited("text_config.linear_attn_config.gate_lower_bound", ...))
    assert softplus.kda.gate_lower_bound is None
    kept = load_config(edited("text_config.latent_moe_use_norm", ...)).moe
    dropped = load_config(edited("text_config.latent_moe_use_norm", False)).moe
    assert kept is not None and kept.latent_norm and dropped is not None
    assert not dropped.latent_norm
    plain = load_config(edited("text_config.quantization_config", ...)).moe
    assert plain is not None and plain.expert_format == "plain"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("sliding_window", 4096),
        ("text_config.sliding_window", 4096),
        ("text_config.linear_attn_config.allow_neg_eigval", True),
        ("text_config.quantization_config.surprise", 1),
        ("vision_config.window_size", 7),
    ],
)
def test_unknown_keys_are_refused_by_name(key: str, value: object) -> None:
    fault = refused(edited(key, value))
    assert fault.code == "K3-G002" and fault.where == key and repr(value) in fault.found


def test_bookkeeping_keys_are_let_pass() -> None:
    assert load_config(edited("text_config.transformers_version", "5.0")) == load_preset("kimi-k3")


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("hidden_act", "gelu", "situ"),
        ("mla_use_nope", False, "True"),
        ("moe_router_activation_func", "softmax", "sigmoid"),
        ("topk_method", "greedy", "noaux_tc"),
        ("num_expert_group", 8, "1"),
        ("moe_layer_freq", 2, "1"),
        ("logit_scale", 0.5, "1"),
        ("num_key_value_heads", 8, "96"),
        ("linear_attn_config.short_conv_kernel_size", 3, "4"),
        ("linear_attn_config.gate_lower_bound", -6.0, "-5.0"),
        ("linear_attn_config.gate_lower_bound", 0.5, "-5.0"),
        ("quantization_config.quant_method", "gptq", "compressed-tensors"),
        ("quantization_config.format", "nvfp4-pack-quantized", "mxfp4"),
        ("quantization_config.config_groups.group_0.weights.group_size", 16, "32"),
        ("quantization_config.config_groups.group_0.weights.num_bits", 8, "4"),
        ("quantization_config.config_groups.group_0.input_activations", {"num_bits": 8}, "null"),
    ],
)
def test_values_not_supported(key: str, value: object, allowed: str) -> None:
    fault = refused(edited(f"text_config.{key}", value))
    assert fault.code == "K3-G002" and fault.where == f"text_config.{key}"
    assert allowed in fault.expected and repr(value)[:20] in fault.found


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("num_key_value_heads", 36, "num_attention_heads = 96"),
        ("num_experts_per_token", 900, "num_experts = 896"),
        ("first_k_dense_replace", 94, "num_hidden_layers = 93"),
        ("num_hidden_layers", 92, "1..92"),
        ("num_hidden_layers", 94, "[94]"),
        ("routed_expert_hidden_size", 3600, "group size 32"),
        ("moe_intermediate_size", 3056, "group size 32"),
        ("routed_expert_hidden_size", None, "latent_moe_use_norm"),
        ("hidden_act", "silu", "activation_situ_beta"),
        ("num_experts", None, "num_experts"),
        ("activation_situ_beta", -4.0, "> 0"),
        ("eos_token_id", 163840, "eos_token_id"),
        ("linear_attn_config.full_attn_layers", [*range(4, 93, 4), 93, 5], "in both: [5]"),
        ("linear_attn_config.full_attn_layers", [*range(4, 93, 4)], "[93]"),
        ("linear_attn_config.full_attn_layers", [*range(4, 93, 4), 93, 93], "more than once: [93]"),
        ("linear_attn_config.full_attn_layers", [0, *range(4, 93, 4), 93], "1-based"),
    ],
)
def test_contradictions(key: str, value: object, says: str) -> None:
    fault = refused(edited(f"text_config.{key}", value))
    assert fault.code == "K3-G003" and says in str(fault)


def test_vision_contradiction() -> None:
    assert "vt_num_attention_heads" in str(refused(edited("vision_config.qkv_hidden_size", 1540)))


@pytest.mark.parametrize("text", ["", "[1]", "{", '{"model_type": 3}', '{"model_type": "llama"}'])
def test_foreign_files(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(K3Error) as caught:
        load_config(path)
    assert caught.value.code in ("K3-G005", "K3-G002")
    assert caught.value.where in (str(path), "model_type")


def test_model_may_be_a_preset_a_file_or_a_directory(tmp_path: Path) -> None:
    config = make_checkpoint(tmp_path, tiny_config(), experts="plain")
    assert resolve_model(str(tmp_path)) == (config, tmp_path)
    assert resolve_model(str(tmp_path / "config.json")) == (config, None)
    assert resolve_model("kimi-k3") == (load_preset("kimi-k3"), None)


@pytest.mark.parametrize(
    ("given", "near"), [("kimi-k33", "kimi-k3"), ("Kimi-Linear", "kimi-linear-48b")]
)
def test_unknown_model_suggests_the_nearest(given: str, near: str) -> None:
    with pytest.raises(K3Error, match=f"did you mean {near}\\?") as caught:
        resolve_model(given)
    assert caught.value.code == "K3-G006"


@pytest.mark.parametrize(
    ("key", "value", "code"),
    [
        ("architectures", ["LlamaForCausalLM"], "K3-G002"),
        ("architectures", "foo", "K3-G001"),
        ("rms_norm_eps", -1.0, "K3-G001"),
        ("rms_norm_eps", 0, "K3-G001"),
        ("routed_scaling_factor", -1, "K3-G001"),
        ("num_nextn_predict_layers", "foo", "K3-G001"),
    ],
)
def test_values_that_no_model_of_the_family_has_name_their_key(
    key: str, value: object, code: str
) -> None:
    text = dict(preset_json("kimi-linear-48b")) | {key: value}
    with pytest.raises(K3Error) as caught:
        load_config(text)
    assert caught.value.code == code
    assert key in caught.value.where
