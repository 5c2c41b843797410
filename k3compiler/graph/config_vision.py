"""vision_config: read so that nothing goes unnoticed; the tower is not compiled (spec 1.4)."""

from __future__ import annotations

from k3compiler.graph.config_keys import ConfigKeys

_SIZES = (
    "patch_size init_pos_emb_height init_pos_emb_width init_pos_emb_time vt_num_hidden_layers "
    "vt_num_attention_heads vt_hidden_size vt_intermediate_size qkv_hidden_size mm_hidden_size "
    "text_hidden_size"
).split()
_CHOICES = {
    "merge_type": ("sd2_tpool",),
    "pos_emb_type": ("divided_fixed",),
    "video_attn_type": ("spatial_temporal",),
    "mm_projector_type": ("patchmergerv2",),
    "projector_hidden_act": ("gelu",),
    "norm_type": ("rmsnorm",),
    "mlp_type": ("mlp2",),
    "activation_func": ("gelu_pytorch_tanh",),
}
_INTERPOLATIONS = ("pos_emb_interpolation", "pos_emb_interpolation_mode")
_BIASES = ("attn_bias", "linear_bias", "patch_embed_proj_bias")


def read_vision_config(keys: ConfigKeys) -> None:
    """Check every key of the object.

    Raises:
        K3Error K3-G001, K3-G002, K3-G003, naming the key.
    """
    keys.ignore("model_type")
    sizes = {key: keys.take_optional_int(key) for key in _SIZES}
    for key, allowed in _CHOICES.items():
        keys.take_choice(key, allowed, allowed[0])
    for key in _INTERPOLATIONS:
        keys.take_choice(key, ("bilinear",), "bilinear")
    for key in _BIASES:
        keys.take_choice(key, (False,), False)
    keys.take_optional_float("projector_ln_eps")
    if "merge_kernel_size" in keys and len(keys.take_int_list("merge_kernel_size")) != 2:
        keys.wrong("merge_kernel_size", "two integers")
    heads = sizes["vt_num_attention_heads"]
    if heads and (sizes["qkv_hidden_size"] or 0) % heads:
        keys.contradict("qkv_hidden_size", f"a multiple of vt_num_attention_heads = {heads}")
    keys.finish()
