"""How many launches a decode step makes on a GPU: a new one has to be meant."""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest

from k3compiler.driver import lower_model
from k3compiler.package.expr import evaluate
from k3compiler.package.manifest import LaunchStep, Plan
from k3compiler.package.pitches import dense_pitches
from k3compiler.passes.lower_to_tile.builder import Kernels
from k3compiler.reference.tiny import tiny_config
from k3compiler.targets.base import find_target
from tests.package import package_samples as samples

pytestmark = pytest.mark.t1


@cache
def decode_plan() -> Plan:
    """K3 in small: AttnRes, latent experts and shared ones."""
    target, kernels = find_target("h200"), Kernels()
    config = tiny_config("spec")
    lowered = lower_model(config, target, kernels, tp=1, ep=1, dtype="bfloat16", moe="a16w4")
    return lowered["decode"].plan


def launches(tokens: int) -> dict[int | None, list[LaunchStep]]:
    """What a step of that many tokens launches, by layer."""
    sizes = {"T": tokens, "S": tokens, "R": tokens, "P": 4, "PAGES": 4 * tokens + 1}
    sizes |= {"SLOTS": tokens + 1, "rank": 0, **dense_pitches(samples.manifest())}
    found: dict[int | None, list[LaunchStep]] = {}
    for step in decode_plan().steps:
        if isinstance(step, LaunchStep) and all(evaluate(g, sizes) for g in step.grid):
            found.setdefault(step.layer, []).append(step)
    return found


@pytest.mark.parametrize(("tokens", "limits"), [(1, (12, 17)), (8, (13, 18)), (64, (13, 18))])
def test_launches_of_a_layer(tokens: int, limits: tuple[int, int]) -> None:
    """KDA and MLA layers with experts; one token is routed in one launch, a few in two."""
    layers = tiny_config("spec").mla_layers
    moe = {n: ls for n, ls in launches(tokens).items() if any(s.op == "moe.down" for s in ls)}
    kda = [len(ls) for n, ls in moe.items() if n not in layers]
    mla = [len(ls) for n, ls in moe.items() if n in layers]
    assert max(kda) <= limits[0]
    assert max(mla) <= limits[1]


@pytest.mark.parametrize(
    ("tokens", "families"),
    [
        (1, ["moe_route"]),
        (2, ["moe_choose", "moe_group"]),
        (64, ["moe_choose", "moe_group"]),
        (65, ["moe_topk", "moe_count", "moe_offsets", "moe_scatter"]),
    ],
)
def test_the_router_takes_the_form_of_its_tokens(tokens: int, families: list[str]) -> None:
    for layer in launches(tokens).values():
        found = [s.launch.rpartition("_")[0] for s in layer if s.op == "moe.route"]
        assert found in ([], families)


@pytest.mark.parametrize("tokens", [1, 8, 64])
def test_maps_of_one_input_are_one_launch(tokens: int) -> None:
    """The router, the latent projection and the shared experts' gate and up."""
    for layer in launches(tokens).values():
        if any(s.op == "moe.down" for s in layer):
            ops = [s.op for s in layer if "k3.gated_linear" in s.op]
            assert ops == ["k3.linear+k3.gated_linear"]


def test_a_step_needs_no_rows_picked() -> None:
    ops = Counter(s.op for layer in launches(1).values() for s in layer)
    assert not ops["k3.gather_rows"] and not ops["k3.situ"]
