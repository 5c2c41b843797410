"""Parallel branches: what a step depends on has ended, whatever is shared; branches only where they are free."""

from __future__ import annotations

import random

import pytest

from k3compiler.package.manifest import CollectiveStep, LaunchStep, Step
from k3compiler.passes.lower_to_tile.branches import access_of, ancestors, branched
from k3compiler.passes.lower_to_tile.refs import Ref
from k3compiler.passes.lower_to_tile.workspace import plan_workspace

pytestmark = pytest.mark.t0


def launch(reads: str, write: str) -> LaunchStep:
    return LaunchStep("k", (*reads.split(), write), ("1", "1", "1"), "op")


def in_branches(steps: list[Step]) -> tuple[Step, ...]:
    return branched(steps, lambda step: access_of(step, lambda s: s.args[-1:]))


def test_what_shares_only_its_input_runs_beside() -> None:
    steps = in_branches(
        [launch("in", "x"), launch("x w:a", "a"), launch("x w:b", "b"), launch("a b", "y")]
    )
    assert [s.stream for s in steps] == [0, 0, 1, 0]
    assert [s.waits for s in steps] == [(), (), (0,), (2,)]


def test_a_joined_branch_is_taken_again() -> None:
    diamond = [launch("x", "a"), launch("x", "b"), launch("a b", "x")]
    steps = in_branches([launch("in", "x"), *diamond, *diamond])
    assert [s.stream for s in steps] == [0, 0, 1, 0, 0, 1, 0]


def test_collectives_are_in_one_order() -> None:
    total = CollectiveStep("all_reduce", ("b",), "1", "tp", "comm.all_reduce")
    steps = in_branches([launch("in", "x"), launch("x", "a"), launch("x", "b"), total])
    assert (steps[3].stream, steps[3].waits) == (0, (2,))


def random_steps(seed: int) -> list[Step]:
    """Launches over a few names each; some names are written again."""
    rng = random.Random(seed)
    names = [f"n{i}" for i in range(12)]
    return [
        launch(" ".join(rng.sample(names, rng.randint(1, 2))), rng.choice(names)) for _ in range(40)
    ]


@pytest.mark.parametrize("seed", range(20))
def test_every_hazard_is_ordered(seed: int) -> None:
    steps = in_branches(random_steps(seed))
    before = ancestors(steps)
    for j, later in enumerate(steps):
        for i, former in enumerate(steps[:j]):
            if former.args[-1] in later.args or later.args[-1] in former.args:
                assert before[j] >> i & 1, f"{j} may run beside {i}"


@pytest.mark.parametrize("seed", range(20))
def test_buffers_alive_together_share_nothing(seed: int) -> None:
    """Each step writes a buffer of its own and reads recent ones."""
    rng = random.Random(seed)
    steps: list[Step] = [launch("in", "b0")]
    for i in range(1, 40):
        near = [f"b{rng.randrange(max(0, i - 6), i)}" for _ in range(2)]
        steps.append(launch(" ".join(near), f"b{i}"))
    placed = in_branches(steps)
    assert any(s.stream for s in placed)
    buffers = [Ref(f"b{i}", "f32", ("T", 4)) for i in range(40)]
    records, storage = plan_workspace(placed, buffers, ())
    assert len(storage) < len(buffers), "memory is used again"
    before, users = ancestors(placed), dict[str, list[int]]()
    for i, step in enumerate(placed):
        for name in step.args:
            users.setdefault(name, []).append(i)
    for a in records:
        for b in records:
            if a.name != b.name and a.storage == b.storage:
                first, second = sorted((users[a.name], users[b.name]))
                assert all(before[second[0]] >> user & 1 for user in first)
