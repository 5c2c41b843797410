"""What a step of one token launches where experts lie on several ranks: their sum comes with the last product."""

from __future__ import annotations

import pytest

from k3compiler.driver import Moe, lower_model
from k3compiler.package.expr import evaluate
from k3compiler.package.manifest import LaunchStep
from k3compiler.package.pitches import dense_pitches
from k3compiler.passes.lower_to_tile.builder import Kernels
from k3compiler.reference.tiny import tiny_config
from k3compiler.targets.base import find_target
from tests.package import package_samples as samples

pytestmark = pytest.mark.t1

OPS = ("moe.gate_up", "moe.gate_up_mx", "moe.down", "moe.combine")
ONE = ["moe_gate_up_one", "moe_down_one"]
SEVERAL = ["moe_gate_up", "moe_down", "moe_combine"]
ROUNDED = ["moe_gate_up_one", "mx_round", "moe_down_one"]
TABLE: list[tuple[str, Moe, int, list[str]]] = [
    ("h200", "a16w4", 1, ONE),
    ("h200", "a16w4", 2, SEVERAL),
    ("h200", "a8w4", 1, ROUNDED),
    ("h200", "a8w4", 2, SEVERAL),
    ("gb300", "a16w4", 1, SEVERAL),
    ("mi355x", "a16w4", 1, SEVERAL),
    ("gb300", "a8w4", 1, SEVERAL),
]


@pytest.mark.parametrize(("target", "moe", "tokens", "families"), TABLE)
def test_experts_of_a_step(target: str, moe: Moe, tokens: int, families: list[str]) -> None:
    config = tiny_config("spec")
    lowered = lower_model(
        config, find_target(target), Kernels(), tp=2, ep=2, dtype="bfloat16", moe=moe
    )
    sizes = {"T": tokens, "S": tokens, "R": tokens, "P": 4, "PAGES": 4 * tokens + 1}
    sizes |= {"SLOTS": tokens + 1, "rank": 0, **dense_pitches(samples.manifest())}
    found: dict[int | None, list[str]] = {}
    launches = [s for s in lowered["decode"].plan.steps if isinstance(s, LaunchStep)]
    for step in launches:
        if step.op in OPS and all(evaluate(extent, sizes) for extent in step.grid):
            found.setdefault(step.layer, []).append(step.launch.rpartition("_")[0])
    assert found and all(layer == families for layer in found.values())
