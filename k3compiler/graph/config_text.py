"""text_config -> ModelConfig, for K3 and for Kimi-Linear-48B (spec 1.2, 1.5)."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from k3compiler.config import MX_GROUP, KdaConfig, MlaConfig, ModelConfig, MoeConfig
from k3compiler.graph.config_keys import ConfigKeys
from k3compiler.graph.config_quantization import read_expert_format

CONV_SIZE = 4  # the convolution state of the package holds three rows
LOWEST_GATE_BOUND = -5.0  # 16 steps of it still fit an f32 exponent (spec 3.7)
MOE_KEYS = (
    "num_experts num_experts_per_token num_shared_experts moe_intermediate_size "
    "moe_router_activation_func moe_renormalize topk_method use_grouped_topk num_expert_group "
    "topk_group routed_scaling_factor first_k_dense_replace moe_layer_freq "
    "routed_expert_hidden_size latent_moe_use_norm"
).split()


def read_text_config(keys: ConfigKeys, *, is_k3: bool) -> ModelConfig:
    """Read every key of the object, then check them against each other.

    ``is_k3``: the file says that it is K3 (wrapper, or model_type kimi_k3). A text-only export
    that says kimi_linear but has AttnRes blocks is K3 as well.

    Raises:
        K3Error K3-G001, K3-G002, K3-G003, each naming the key.
    """
    keys.ignore("model_type", "head_dim", "rope_theta", "rope_scaling", "rope_parameters")
    keys.take_architectures()
    keys.take_optional_int("num_nextn_predict_layers", least=0)  # MTP layers only draft
    num_layers = keys.take_int("num_hidden_layers")
    block = keys.take_optional_int("attn_res_block_size")
    kda, mla_layers = _read_linear_attn(keys.take_object("linear_attn_config"), num_layers)
    moe, num_dense = _read_moe(keys, num_layers)
    situ_beta, situ_linear_beta = _read_situ(keys)
    config = ModelConfig(
        name="kimi_k3" if is_k3 or block is not None else "kimi_linear",
        vocab_size=keys.take_int("vocab_size"),
        hidden_dim=keys.take_int("hidden_size"),
        num_layers=num_layers,
        mla_layers=mla_layers,
        num_dense=num_dense,
        dense_dim=keys.take_int("intermediate_size"),
        activation=_read_activation(keys),
        situ_beta=situ_beta,
        situ_linear_beta=situ_linear_beta,
        rms_eps=keys.take_positive_float("rms_norm_eps"),
        attn_res_block=block,
        max_context=_read_max_context(keys),
        kda=kda,
        mla=_read_mla(keys),
        moe=moe,
        bos_id=_read_token_id(keys, "bos_token_id"),
        eos_id=_read_token_id(keys, "eos_token_id"),
        pad_id=_read_token_id(keys, "pad_token_id"),
        tie_embeddings=keys.take_bool("tie_word_embeddings", False),
    )
    _check_constants(keys)
    _check_token_ids(keys, config)
    keys.finish()
    return config if config.name == "kimi_k3" else _with_plain_a_log(config)


def _with_plain_a_log(config: ModelConfig) -> ModelConfig:
    """The 48B family stores one A_log per head, in four dimensions; K3 pads (spec 1.5, 3.3)."""
    kda = replace(config.kda, a_log_size=config.kda.num_heads, a_log_rank=4)
    return replace(config, kda=kda)


def _read_linear_attn(keys: ConfigKeys, num_layers: int) -> tuple[KdaConfig, tuple[int, ...]]:
    num_heads, head_dim = keys.take_int("num_heads"), keys.take_int("head_dim")
    bound = keys.take_optional_float("gate_lower_bound")
    if bound is not None and not LOWEST_GATE_BOUND <= bound < 0:
        keys.refuse("gate_lower_bound", f"a number in [{LOWEST_GATE_BOUND}, 0), or no such key")
    kda = KdaConfig(
        num_heads=num_heads,
        head_dim=head_dim,
        conv_size=keys.take_choice("short_conv_kernel_size", (CONV_SIZE,)),
        gate_lower_bound=bound,
        full_rank_gate=keys.take_bool("use_full_rank_gate", False),
        a_log_size=max(num_heads, head_dim),
    )
    mla_layers = _read_layer_lists(keys, num_layers)
    keys.finish()
    return kda, mla_layers


def _read_layer_lists(keys: ConfigKeys, num_layers: int) -> tuple[int, ...]:
    """The two 1-based lists must name every layer once; -> 0-based MLA layers."""
    kda, full = keys.take_int_list("kda_layers"), keys.take_int_list("full_attn_layers")
    for key, layers in (("kda_layers", kda), ("full_attn_layers", full)):
        outside = [n for n in layers if not 1 <= n <= num_layers]
        if outside:
            keys.contradict(
                key, f"layers 1..{num_layers} (the lists are 1-based)", f"outside: {outside}"
            )
        twice = sorted({n for n in layers if layers.count(n) > 1})
        if twice:
            keys.contradict(key, "every layer once", f"more than once: {twice}")
    both = sorted(set(kda) & set(full))
    if both:
        keys.contradict("full_attn_layers", "no layer of kda_layers", f"in both: {both}")
    neither = sorted(set(range(1, num_layers + 1)) - set(kda) - set(full))
    if neither:
        hint = f"in neither kda_layers nor full_attn_layers: {neither}"
        keys.contradict("kda_layers", f"with full_attn_layers, all of 1..{num_layers}", hint)
    return tuple(n - 1 for n in sorted(full))


def _read_mla(keys: ConfigKeys) -> MlaConfig:
    num_heads = keys.take_int("num_attention_heads")
    kv_heads = keys.take_int("num_key_value_heads", num_heads)
    if num_heads % kv_heads:
        allowed = f"a divisor of num_attention_heads = {num_heads}"
        keys.contradict("num_key_value_heads", allowed)
    if kv_heads != num_heads:
        allowed = f"num_attention_heads = {num_heads} (MLA has one key head per query head)"
        keys.refuse("num_key_value_heads", allowed)
    keys.take_choice("mla_use_nope", (True,), True)
    return MlaConfig(
        num_heads=num_heads,
        q_lora_rank=keys.take_optional_int("q_lora_rank"),
        kv_lora_rank=keys.take_int("kv_lora_rank"),
        nope_dim=keys.take_int("qk_nope_head_dim"),
        rope_dim=keys.take_int("qk_rope_head_dim"),
        v_dim=keys.take_int("v_head_dim"),
        output_gate=keys.take_bool("mla_use_output_gate", False),
    )


def _read_moe(keys: ConfigKeys, num_layers: int) -> tuple[MoeConfig | None, int]:
    """-> the MoE and the number of dense layers before it."""
    expert_format = read_expert_format(keys)
    if "num_experts" not in keys:
        for key in MOE_KEYS:
            if key in keys:
                keys.contradict(key, "no MoE key without num_experts")
        keys.ignore(*MOE_KEYS)
        return None, num_layers
    num_dense = keys.take_int("first_k_dense_replace", least=0)
    if num_dense > num_layers:
        keys.contradict("first_k_dense_replace", f"at most num_hidden_layers = {num_layers}")
    num_experts, top_k = keys.take_int("num_experts"), keys.take_int("num_experts_per_token")
    if top_k > num_experts:
        keys.contradict("num_experts_per_token", f"at most num_experts = {num_experts}")
    latent = keys.take_optional_int("routed_expert_hidden_size")
    moe = MoeConfig(
        num_experts=num_experts,
        top_k=top_k,
        num_shared=keys.take_int("num_shared_experts", 0, least=0),
        expert_dim=keys.take_int("moe_intermediate_size"),
        latent_dim=latent,
        latent_norm=_read_latent_norm(keys, latent),
        renormalize=keys.take_bool("moe_renormalize", True),
        scale=keys.take_positive_float("routed_scaling_factor", 1.0),
        expert_format=expert_format,
    )
    _check_router(keys)
    if expert_format == "mxfp4":
        _check_groups(keys, latent)
    return moe, num_dense


def _read_latent_norm(keys: ConfigKeys, latent: int | None) -> bool:
    """A missing key keeps the norm: dropping it silently is trap 7 of the spec."""
    norm = keys.take_bool("latent_moe_use_norm", latent is not None)
    if norm and latent is None:
        keys.contradict("latent_moe_use_norm", "false without routed_expert_hidden_size")
    return norm


def _check_router(keys: ConfigKeys) -> None:
    keys.take_choice("moe_router_activation_func", ("sigmoid",), "sigmoid")
    keys.take_choice("topk_method", ("noaux_tc",), "noaux_tc")
    keys.take_choice("moe_layer_freq", (1,), 1)
    keys.take_bool("use_grouped_topk", False)
    keys.take_choice("num_expert_group", (1,), 1)
    keys.take_choice("topk_group", (1,), 1)


def _check_groups(keys: ConfigKeys, latent: int | None) -> None:
    """MXFP4 packs along the input: both inner widths are whole groups."""
    inner = "hidden_size" if latent is None else "routed_expert_hidden_size"
    for key in (inner, "moe_intermediate_size"):
        if keys.take_int(key) % MX_GROUP:
            keys.contradict(key, f"a multiple of the MXFP4 group size {MX_GROUP}")


def _read_activation(keys: ConfigKeys) -> Literal["situ", "silu"]:
    return keys.take_choice("hidden_act", ("situ", "silu"))


def _read_situ(keys: ConfigKeys) -> tuple[float, float | None]:
    """The caps must be stated: a default would hide a missing value (spec trap 10)."""
    betas = ("activation_situ_beta", "activation_situ_linear_beta")
    if _read_activation(keys) != "situ":
        for key in betas:
            if key in keys:
                keys.contradict(key, "no such key unless hidden_act is 'situ'")
        keys.ignore(*betas)
        return 1.0, None
    beta, linear_beta = keys.take_float(betas[0]), keys.take_optional_float(betas[1])
    if keys.shown(betas[1]) == "no such key":
        keys.wrong(betas[1], "a number, or null for an uncapped up branch")
    for key, value in zip(betas, (beta, linear_beta), strict=True):
        if value is not None and value <= 0:
            keys.contradict(key, "a number > 0")
    return beta, linear_beta


def _read_max_context(keys: ConfigKeys) -> int:
    """max_position_embeddings (K3) or model_max_length (48B)."""
    ours = keys.take_optional_int("max_position_embeddings")
    theirs = keys.take_optional_int("model_max_length")
    if ours is not None and theirs is not None and ours != theirs:
        keys.contradict("model_max_length", f"max_position_embeddings = {ours}")
    return ours or theirs or keys.take_int("max_position_embeddings")


def _read_token_id(keys: ConfigKeys, key: str) -> int | None:
    value = keys.take(key)
    if isinstance(value, list) and len(value) == 1 and type(value[0]) is int:
        return value[0]
    return keys.take_optional_int(key, least=0)


def _check_token_ids(keys: ConfigKeys, config: ModelConfig) -> None:
    ids = {"bos": config.bos_id, "eos": config.eos_id, "pad": config.pad_id}
    for name, value in ids.items():
        if value is not None and value >= config.vocab_size:
            keys.contradict(f"{name}_token_id", f"below vocab_size = {config.vocab_size}")


def _check_constants(keys: ConfigKeys) -> None:
    """Keys that only one value of is implemented."""
    keys.take_choice("attention_bias", (False,), False)
    scale = keys.take_float("logit_scale", 1.0)
    if scale != 1.0:
        keys.refuse("logit_scale", "1, or no such key")
