"""The tensor table against the release's totals; what the strict check refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from k3compiler.errors import K3Error
from k3compiler.graph.checkpoint import check_checkpoint, expected_tensors, load_checkpoint_config
from k3compiler.graph.config_import import load_config, load_preset, preset_json
from k3compiler.package.tensor_table import TensorSpec, vision_tensors
from k3compiler.reference.config_json import config_to_json
from k3compiler.reference.random_checkpoint import make_checkpoint
from k3compiler.reference.tiny import TINY_CONFIGS, tiny_config

Tensors = dict[str, np.ndarray]


def test_totals_of_the_release() -> None:
    table = expected_tensors(load_preset("kimi-k3"))
    vision = vision_tensors(preset_json("kimi-k3")["vision_config"])
    routed = [name for name in table if ".experts." in name]
    assert (len(table) - len(routed), len(routed), len(vision)) == (2460, 494_592, 168)
    total = sum(spec.num_bytes for spec in [*table.values(), *vision.values()])
    assert total == 1_560_860_324_864
    assert sum(spec.num_bytes for spec in vision.values()) == 2 * 447_358_976


def test_names_of_the_48b_family() -> None:
    table = expected_tensors(load_preset("kimi-linear-48b"))
    assert table["model.layers.0.self_attn.A_log"] == TensorSpec((1, 1, 32, 1), "f32")
    assert table["model.layers.3.self_attn.q_proj.weight"].shape == (32 * 192, 2304)
    assert table["model.layers.1.block_sparse_moe.experts.255.w2.weight"].shape == (2304, 1024)
    assert "model.layers.0.self_attn.g_a_proj.weight" in table
    assert not any("_res_" in name or "routed_expert" in name for name in table)


@pytest.mark.parametrize("name", TINY_CONFIGS)
@pytest.mark.parametrize("experts", ["plain", "mxfp4"])
@pytest.mark.parametrize("num_shards", [1, 3])
def test_whole_checkpoints_pass(tmp_path: Path, name: str, experts: str, num_shards: int) -> None:
    kind = "plain" if experts == "plain" else "mxfp4"
    config = make_checkpoint(tmp_path, tiny_config(name), experts=kind, num_shards=num_shards)
    assert load_checkpoint_config(tmp_path) == config
    assert len(check_checkpoint(tmp_path, config)) == len(expected_tensors(config))


def rewritten(tmp_path: Path, edit: Callable[[Tensors], object], wrapper: bool = True) -> Path:
    """A checkpoint with its tensors edited in place."""
    make_checkpoint(tmp_path, tiny_config(), wrapper=wrapper)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    edit(tensors)
    save_file(tensors, path)
    return tmp_path


def refused(directory: Path) -> str:
    with pytest.raises(K3Error) as caught:
        check_checkpoint(directory, load_config(directory / "config.json"))
    assert caught.value.code == "K3-G004"
    return caught.value.found


P = "language_model.model.layers.1."


def test_the_list_names_every_fault(tmp_path: Path) -> None:
    def edit(t: Tensors) -> None:
        del t[f"{P}mlp_res_norm.weight"]
        t["language_model.model.layers.1.self_attn.bias"] = np.zeros(3, np.float32)
        t[f"{P}self_attn.f_a_proj.weight"] = t[f"{P}self_attn.f_a_proj.weight"].T.copy()
        t[f"{P}self_attn.dt_bias"] = t[f"{P}self_attn.dt_bias"].astype(np.float16)

    found = refused(rewritten(tmp_path, edit))
    assert found.startswith("4 faults")
    assert "missing: model.layers.1.mlp_res_norm.weight bf16 [64]" in found
    assert "extra: language_model.model.layers.1.self_attn.bias" in found
    assert "self_attn.f_a_proj.weight should be bf16 [16, 64], is bf16 [64, 16]" in found
    assert "self_attn.dt_bias should be f32 [64], is f16" in found


@pytest.mark.parametrize("leaf", ["A_log", "dt_bias", "q_conv1d.weight", "o_norm.weight"])
def test_narrowed_parameters_are_refused(tmp_path: Path, leaf: str) -> None:
    import ml_dtypes

    def edit(t: Tensors) -> None:
        t[f"{P}self_attn.{leaf}"] = t[f"{P}self_attn.{leaf}"].astype(ml_dtypes.bfloat16)

    assert f"self_attn.{leaf} should be f32" in refused(rewritten(tmp_path, edit))


def test_scales_of_another_type(tmp_path: Path) -> None:
    name = f"{P}block_sparse_moe.experts.0.w1.weight_scale"

    def edit(t: Tensors) -> None:
        t[name] = t[name].astype(np.int8)

    assert "experts.0.w1.weight_scale should be i8 [32, 1], is int8" in refused(
        rewritten(tmp_path, edit)
    )


def test_experts_half_packed(tmp_path: Path) -> None:
    def edit(t: Tensors) -> None:
        name = f"{P}block_sparse_moe.experts.0.w1.weight"
        del t[f"{name}_packed"], t[f"{name}_scale"]
        t[name] = np.zeros((32, 32), np.float32)

    found = refused(rewritten(tmp_path, edit))
    assert "experts.0.w1.weight_packed" in found and "extra" in found


def test_the_latent_norm_cannot_be_lost(tmp_path: Path) -> None:
    """Config without the key, checkpoint without the tensor: refused, not run without it."""

    def edit(t: Tensors) -> None:
        for name in [n for n in t if n.endswith("routed_expert_norm.weight")]:
            del t[name]

    directory = rewritten(tmp_path, edit)
    data = json.loads((directory / "config.json").read_text())
    del data["text_config"]["latent_moe_use_norm"]
    (directory / "config.json").write_text(json.dumps(data))
    assert "missing: model.layers.1.block_sparse_moe.routed_expert_norm.weight" in refused(
        directory
    )


def with_vision_and_mtp(t: Tensors) -> None:
    for name in (
        "vision_tower.patch_embed.proj.weight",
        "mm_projector.proj.0.weight",
        "language_model.model.layers.9.input_layernorm.weight",
        "language_model.model.mtp.fc.weight",
    ):
        t[name] = np.zeros(2, np.float32)


def test_vision_and_mtp_pass_in_the_wrapper(tmp_path: Path) -> None:
    directory = rewritten(tmp_path, with_vision_and_mtp)
    check_checkpoint(directory, load_config(directory / "config.json"))


def test_vision_and_mtp_are_extra_in_a_text_model(tmp_path: Path) -> None:
    found = refused(rewritten(tmp_path, with_vision_and_mtp, wrapper=False))
    assert found.startswith("4 faults") and "extra: vision_tower" in found


def test_legacy_spellings_and_a_log_shape(tmp_path: Path) -> None:
    def edit(t: Tensors) -> None:
        for name in list(t):
            for site in ("self_attention_res", "mlp_res", "output_attn_res"):
                for part in ("proj", "norm"):
                    if name.endswith(f"{site}_{part}.weight"):
                        t[name.replace(f"_{part}.weight", f".{part}_weight")] = t.pop(name)
            if name.endswith("A_log"):
                t[name] = t[name].reshape(1, 1, 16, 1)

    directory = rewritten(tmp_path, edit)
    config = load_checkpoint_config(directory)
    assert config.kda.a_log_shape == (1, 1, 16, 1)
    check_checkpoint(directory, config)


def test_one_a_log_of_another_shape(tmp_path: Path) -> None:
    def edit(t: Tensors) -> None:
        t[f"{P}self_attn.A_log"] = t[f"{P}self_attn.A_log"].reshape(1, 1, 16, 1)

    assert "A_log should be f32 [16], is f32 [1, 1, 16, 1]" in refused(rewritten(tmp_path, edit))


def test_both_spellings_at_once(tmp_path: Path) -> None:
    def edit(t: Tensors) -> None:
        t[f"{P}mlp_res.norm_weight"] = t[f"{P}mlp_res_norm.weight"]

    assert "another spelling" in refused(rewritten(tmp_path, edit))


def test_a_log_without_padding_is_read_off_the_tensor(tmp_path: Path) -> None:
    def edit(t: Tensors) -> None:
        for name in [n for n in t if n.endswith("A_log")]:
            t[name] = t[name][:4].copy()

    directory = rewritten(tmp_path, edit)
    config = load_checkpoint_config(directory)
    assert config.kda.a_log_size == 4
    check_checkpoint(directory, config)


def test_a_log_with_too_few_heads(tmp_path: Path) -> None:
    def edit(t: Tensors) -> None:
        for name in [n for n in t if n.endswith("A_log")]:
            t[name] = t[name][:3].copy()

    assert "A_log should be f32 [4], is f32 [3]" in refused(rewritten(tmp_path, edit))


def test_long_lists_are_cut(tmp_path: Path) -> None:
    found = refused(rewritten(tmp_path, lambda t: [t.pop(n) for n in list(t) if ".w1." in n]))
    assert found.startswith("160 faults") and found.endswith("and 140 more")


def test_directory_without_weights(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config_to_json(tiny_config())))
    with pytest.raises(K3Error, match="no safetensors file") as caught:
        load_checkpoint_config(tmp_path)
    assert caught.value.code == "K3-G005"
