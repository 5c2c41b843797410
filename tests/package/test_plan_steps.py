"""Cutting steps out of a plan keeps the order of the rest."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from k3compiler.package.manifest import LaunchStep, Step
from k3compiler.package.plan_steps import some_steps
from k3compiler.passes.lower_to_tile.branches import ancestors

pytestmark = pytest.mark.t0


def test_waits_are_counted_anew() -> None:
    def step(stream: int, *waits: int) -> Step:
        return LaunchStep("k", (), ("1", "1", "1"), "op", None, stream, waits)

    steps = [step(0), step(0), step(1, 0), step(1), step(0, 3)]
    assert some_steps(steps, lambda s: s is not steps[3])[3].waits == (2,)
    assert some_steps(steps, lambda s: s not in steps[2:4])[2].waits == ()
    assert some_steps(steps, lambda _: True) == tuple(steps)


@pytest.mark.parametrize("seed", range(10))
def test_what_followed_follows(seed: int) -> None:
    rng = random.Random(seed)
    steps: list[Step] = []
    for i in range(30):
        waits = tuple(sorted(rng.sample(range(i), min(i, rng.randint(0, 2)))))
        steps.append(LaunchStep(str(i), (), ("1", "1", "1"), "op", None, rng.randrange(3), waits))
    left = sorted(rng.sample(range(30), 18))
    cut = some_steps(steps, lambda s: isinstance(s, LaunchStep) and int(s.launch) in left)
    assert [replace(s, waits=()) for s in cut] == [replace(steps[i], waits=()) for i in left]
    before, after = ancestors(steps), ancestors(cut)
    for new_b, b in enumerate(left):
        for new_a, a in enumerate(left[:new_b]):
            assert before[b] >> a & 1 == after[new_b] >> new_a & 1
