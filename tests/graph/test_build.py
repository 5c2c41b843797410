"""The graph of a model: its parameters, states, AttnRes sites and op counts."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from k3compiler.config import ModelConfig
from k3compiler.dialects import k3
from k3compiler.dialects.k3.source import leaf_names
from k3compiler.graph.build import build_graph
from k3compiler.graph.config_import import load_preset
from k3compiler.ir import origin_of
from k3compiler.ir.dialect import element, plain, shape
from k3compiler.package.tensor_table import expected_tensors
from k3compiler.passes.module import arguments, model_function, operations, result_names
from k3compiler.passes.pipelines import LoweringOptions, Phase, pipeline
from k3compiler.passes.registry import run_passes
from k3compiler.reference.tiny import TINY_CONFIGS, tiny_config

pytestmark = pytest.mark.t1


def ops_of(module: Any, op_class: Any) -> list[Any]:
    return [op for op in operations(module) if isinstance(op, op_class)]


def tensors_read(module: Any) -> Counter[str]:
    """Checkpoint tensors by name, with how often a parameter reads them; stacks are spelled out."""
    found: Counter[str] = Counter()
    for weight in ops_of(module, k3.Weight):
        source = plain(weight.source)
        count = source["stack"]["count"] if "stack" in source else 1
        found.update(name.format(e=e) for name in leaf_names(source) for e in range(count))
    return found


def tensors_wanted(config: ModelConfig) -> Counter[str]:
    """Every tensor once; layer 0's attention site has one candidate, so that its mix is never made."""
    site = "model.layers.0.self_attention_res_"
    return Counter(name for name in expected_tensors(config) if not name.startswith(site))


@pytest.mark.parametrize("family", TINY_CONFIGS)
def test_every_tensor_of_the_checkpoint_is_read_once(family: str) -> None:
    config = tiny_config(family)
    assert tensors_read(build_graph(config)) == tensors_wanted(config)


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_no_pass_loses_a_tensor(phase: Phase) -> None:
    config = tiny_config("spec")
    module = build_graph(config)
    run_passes(module, pipeline(phase, LoweringOptions()), verify_each=False)
    assert tensors_read(module) == tensors_wanted(config)


def test_states_go_in_and_come_out() -> None:
    config = tiny_config("spec")
    module = build_graph(config, "bfloat16", page_tokens=16)
    function = model_function(module)
    given = arguments(function)
    states = [name for name in given if "." in name]
    assert result_names(function) == ["logits", "next_token", *states]
    kda = [n for n in range(config.num_layers) if not config.is_mla(n)]
    assert states[:2] == ["kda_state.0", "kda_conv.0"]
    assert len(states) == 2 * len(kda) + len(config.mla_layers)
    assert shape(given["kda_state.0"]) == (None, 4, 16, 16)
    assert element(given["kda_state.0"]) == "f32"
    assert shape(given["kda_conv.0"]) == (None, 3, 192)
    assert shape(given["mla_cache.3"]) == (None, 16, 40)
    assert element(given["mla_cache.3"]) == "bf16"


def test_parameters_that_must_not_be_narrowed_stay_f32() -> None:
    module = build_graph(tiny_config("spec"), "bfloat16")
    kept = ("conv1d", "A_log", "dt_bias", "o_norm", "e_score_correction_bias")
    for weight in ops_of(module, k3.Weight):
        name = weight.param.value
        expected = "f32" if name.endswith(kept) else "i8" if "experts.w" in name else "bf16"
        assert element(weight.value) == expected, name


def test_attention_residuals_follow_the_state_machine() -> None:
    """K3: 187 sites, of which layer 0's first has one candidate and no mix; counts as in spec 2.4."""
    config = load_preset("kimi-k3")
    module = build_graph(config, "bfloat16")
    mixes = ops_of(module, k3.AttnResMix)
    assert len(mixes) == 2 * 93 + 1 - 1
    expected = [2]
    for layer in range(1, 93):
        expected += [-(-layer // 12) + 1, layer // 12 + 2]
    assert [len(list(mix.candidates)) for mix in mixes] == [*expected, 9]
    snapshots = list(list(mixes[-1].candidates)[:-1])
    made = [value.owner.opview for value in snapshots]
    assert isinstance(made[0], k3.Embed)
    assert [origin_of(op).layer for op in made[1:]] == [11, 23, 35, 47, 59, 71, 83]


def test_a_block_start_assigns_the_sum() -> None:
    """At layer 3 of the tiny model P is the mixer's output alone, not P + a."""
    module = build_graph(tiny_config("spec"))
    adds = Counter(origin_of(op).layer for op in ops_of(module, k3.Add))
    blocks = {0: 1, 3: 2, 6: 2}  # the FFN's add; from layer 1 on also that of the shared experts
    assert all(adds[layer] == blocks.get(layer, 3) for layer in range(9))


def test_the_published_model_has_the_published_layers() -> None:
    module = build_graph(load_preset("kimi-k3"), "bfloat16")
    counts = Counter(op.operation.name for op in operations(module))
    assert counts["k3.kda_recurrence"] == 69
    assert counts["k3.mla_attention"] == 24
    assert counts["k3.experts"] == 92
    attention = ops_of(module, k3.MlaAttention)
    assert [origin_of(op).layer for op in attention][-2:] == [91, 92]
    assert attention[0].scale.value == pytest.approx(0.0721687836)
    norm = ops_of(module, k3.L2Norm)[0]
    assert norm.scale.value == pytest.approx(0.0883883476)


@pytest.mark.parametrize("preset", ["kimi-k3", "kimi-linear-48b"])
@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_the_published_models_go_down_to_level_2(preset: str, phase: Phase) -> None:
    module = build_graph(load_preset(preset), "bfloat16")
    options = LoweringOptions(tp=8, moe="a8w4")
    run_passes(module, pipeline(phase, options), verify_each=False)
    counts = Counter(op.operation.name for op in operations(module))
    config = load_preset(preset)
    layers = config.num_layers
    kda = "kda.decode" if phase == "decode" else "kda.output"
    assert counts[kda] == layers - len(config.mla_layers)
    assert counts["moe.gate_up"] + counts["moe.gate_up_mx"] == layers - 1
    assert bool(counts["moe.gate_up_mx"]) == (preset == "kimi-k3")  # the other's experts are plain
    assert counts["attn_res.mix_norm"] == 2 * layers
    sums = 2 if preset == "kimi-k3" else 1  # the latent's before the norm, and the layer's
    assert counts["comm.all_reduce"] == 1 + layers + 1 + sums * (layers - 1)
