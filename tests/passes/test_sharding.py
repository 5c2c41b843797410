"""What is cut over the ranks follows from rates: cheap links cut everything, slow ones nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from k3compiler.config import ModelConfig
from k3compiler.driver import lower_model
from k3compiler.graph.config_import import resolve_model
from k3compiler.package.manifest import CollectiveStep, LaunchStep
from k3compiler.passes.lower_to_tile.builder import Kernels
from k3compiler.passes.sharding import choose_shards
from k3compiler.passes.shards import CHOICES
from k3compiler.reference.tiny import spec_tiny
from k3compiler.targets.base import Link, TargetSpec, find_target

pytestmark = pytest.mark.t1


def linked(target: str, latency_s: float, bytes_per_s: float = 1e15) -> TargetSpec:
    return replace(find_target(target), links=(Link(None, latency_s, bytes_per_s),))


def cut(config: ModelConfig, spec: TargetSpec, tp: int) -> set[str]:
    return {record.matrix for record in choose_shards(config, spec, tp) if record.is_cut}


def test_latency_decides() -> None:
    """latent_up's sum is there anyway, so that nothing holds it back; the others go one after another."""
    config, _ = resolve_model("kimi-k3")
    found = [cut(config, linked("h200", us * 1e-6), 16) for us in (0.0, 3, 8, 1000)]
    assert found[0] == set(CHOICES)
    assert found[0] >= found[1] >= found[2] > found[3] == {"latent_up"}
    assert "q_a" in found[1]
    assert found[2] == {"latent_up", "latent_down"}


def test_a_slow_wire_decides_too() -> None:
    config, _ = resolve_model("kimi-k3")
    assert cut(config, linked("h200", 0.0, bytes_per_s=1e6), 16) == {"latent_up"}


def test_the_numbers_are_the_bytes_over_the_rate() -> None:
    config, _ = resolve_model("kimi-k3")
    records = {r.matrix: r for r in choose_shards(config, linked("h200", 2e-6), 16)}
    assert records["q_a"].saved_us == pytest.approx(1536 * 7168 * 2 * 15 / 16 / 4.8e6, abs=0.01)
    assert records["q_a"].added_us == pytest.approx(2.0, abs=0.01)


def test_nothing_is_chosen_without_ranks_or_links() -> None:
    config, _ = resolve_model("kimi-k3")
    assert choose_shards(config, find_target("h200"), 1) == ()
    assert choose_shards(config, find_target("cpu"), 8) == ()


def test_what_does_not_divide_stays_whole() -> None:
    """The tiny model's 10 experts over 4 ranks."""
    assert "router" not in cut(spec_tiny(), linked("h200", 0.0), 4)


@pytest.mark.parametrize("latency_s", [0.0, 1.0])
def test_the_plan_does_what_was_chosen(latency_s: float) -> None:
    """With everything cut each MoE layer has two sums and two gathers, MLA two more; never a second shared sum."""
    config, spec = spec_tiny(), linked("h200", latency_s)
    lowered = lower_model(config, spec, Kernels(), tp=2, ep=2, dtype="bfloat16", moe="a16w4")
    steps = lowered["decode"].plan.steps
    kinds = {
        layer: sorted(
            s.collective for s in steps if isinstance(s, CollectiveStep) and s.layer == layer
        )
        for layer in (1, 3)
    }
    gathers = {1: 2, 3: 4} if not latency_s else {1: 0, 3: 0}
    for layer, found in kinds.items():
        assert found == ["all_gather"] * gathers[layer] + ["all_reduce"] * 3
    norms = [s for s in steps if isinstance(s, LaunchStep) and s.op == "k3.norm_linear"]
    assert any("rank" in s.args for s in norms), "the latent norm gives this rank's columns"
