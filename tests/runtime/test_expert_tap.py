"""Hooks between steps, and the router tap, on the null device."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from k3compiler.package.manifest import (
    ArgRecord,
    BufferRecord,
    CallStep,
    CollectiveStep,
    KernelRecord,
    LaunchStep,
    Plan,
)
from k3compiler.package.writer import PackageWriter
from k3compiler.runtime.device.launch_table import CallItem, LaunchRun, LaunchTable
from k3compiler.runtime.device.null import NullDevice
from k3compiler.runtime.engine import Engine
from k3compiler.runtime.expert_tap import ExpertTap
from tests.package import package_samples as samples

NUM_EXPERTS, TOP_K = 6, 2


def _router() -> KernelRecord:
    return KernelRecord(
        symbol="route",
        family="moe_topk",
        op="moe.route_topk",
        args=(
            ArgRecord("logits", "buffer", "f32", ("T", NUM_EXPERTS)),
            ArgRecord("ids", "buffer", "i32", ("T", TOP_K), access="w"),
            ArgRecord("weights", "buffer", "f32", ("T", TOP_K), access="w"),
            ArgRecord("T", "scalar", "i32"),
        ),
        grid=("T", 1, 1),
        params={"renormalize": True, "scale": 3.0},
    )


def _with_router(plan: Plan) -> Plan:
    """The sample plan with a router between its two kernels."""
    buffers = (
        BufferRecord("scores", "f32", ("T", NUM_EXPERTS), "output"),
        BufferRecord("chosen", "i32", ("T", TOP_K), "output"),
        BufferRecord("shares", "f32", ("T", TOP_K), "output"),
    )
    route = LaunchStep(
        "route", ("scores", "chosen", "shares", "T"), ("T", "1", "1"), "moe.route_topk", 4
    )
    steps = (*plan.steps[:-1], route, plan.steps[-1])
    return replace(plan, steps=steps, buffers=(*plan.buffers, *buffers))


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    with PackageWriter(tmp_path / "pkg") as writer:
        writer.add_plan(_with_router(samples.plan("prefill")))
        writer.add_plan(_with_router(samples.plan("decode")))
        writer.add_weights(samples.weights())
        writer.commit(samples.manifest(kernels=(*samples.kernels(), _router())))
    return Engine(tmp_path / "pkg", None, device="null", max_context=128)


def test_choices_are_recorded_and_forced(engine: Engine) -> None:
    """The null router answers 0, 0 with logits 0; position p is made to take experts p and p + 1."""
    forced = np.stack([np.arange(5) % 5, np.arange(5) % 5 + 1], axis=1)
    with ExpertTap(engine.executor, {4: forced}) as tap:
        engine.logits([1] * 5, chunks=[3, 1, 1])
        prefill, decode = engine.executor.runner("prefill"), engine.executor.runner("decode")
        np.testing.assert_array_equal(prefill.read("chosen"), forced[:3])
        np.testing.assert_array_equal(decode.read("chosen"), forced[4:])
        np.testing.assert_allclose(prefill.read("shares"), np.full((3, 2), 1.5))
    assert sorted(tap.chosen[4]) == [0, 1, 2, 3, 4]
    assert all(row.tolist() == [0, 0] for p, row in tap.chosen[4].items() if p < 3)
    assert tap.num_flips == 4, "expert 0 was not asked for, except at position 0"
    assert not engine.executor.runner("prefill").after_step


def test_weights_follow_the_model_s_own_scores(engine: Engine) -> None:
    scores = np.array([[0.0, 1.0, -2.0, 3.0, 0.5, -1.0]], np.float32)
    runner = engine.executor.runner("prefill")
    with ExpertTap(engine.executor, {4: np.array([[3, 2]])}):
        runner.after_step[0] = lambda r, _: r.write("scores", scores)
        engine.logits([1])
    share = 1 / (1 + np.exp(-scores[0, [3, 2]].astype(np.float64)))
    np.testing.assert_allclose(runner.read("shares")[0], 3 * share / share.sum(), rtol=1e-6)


def _one_token_router() -> KernelRecord:
    lists = {"pairs": "ROWS", "block_expert": "NB", "num_blocks": 1}
    router = _router()
    return replace(
        router,
        symbol="route_one",
        family="moe_route",
        args=(
            *router.args[:3],
            *(ArgRecord(n, "buffer", "i32", (size,), access="w") for n, size in lists.items()),
            ArgRecord("expert_first", "scalar", "i32"),
        ),
        grid=(1, 1, 1),
        params={**router.params, "local_experts": 3, "block_rows": 16},
    )


def test_what_one_token_is_made_to_take_is_sorted(tmp_path: Path) -> None:
    """Experts 2 to 4 are this rank's; the launch for several tokens stands beside and is left out."""
    plan = _with_router(samples.plan("decode"))
    lists = {"pairs": "T*32", "block_expert": "T*2", "num_blocks": 1}
    buffers = [BufferRecord(name, "i32", (size,), "output") for name, size in lists.items()]
    names = ("scores", "chosen", "shares", *lists, "2")
    one = LaunchStep("route_one", names, ("1*(1-min(1, T-1))", "1", "1"), "moe.route", 4)
    several = [replace(s, grid=("T*min(1, T-1)", "1", "1")) if s.op == "moe.route_topk" else s
               for s in plan.steps if isinstance(s, LaunchStep)]  # fmt: skip
    plan = replace(plan, steps=(*several, one), buffers=(*plan.buffers, *buffers))
    with PackageWriter(tmp_path / "pkg") as writer:
        writer.add_plan(samples.plan("prefill"))
        writer.add_plan(plan)
        writer.add_weights(samples.weights())
        kernels = (*samples.kernels(), _router(), _one_token_router())
        writer.commit(samples.manifest(kernels=kernels))
    engine = Engine(tmp_path / "pkg", None, device="null", max_context=128)
    decode = engine.executor.runner("decode")
    for forced, blocks in (((4, 2), {0: 1, 16: 0}), ((1, 3), {0: 1}), ((5, 0), {})):
        with ExpertTap(engine.executor, {4: np.array([[0, 1], forced])}):
            engine.logits([1, 1], chunks=[1, 1])
        assert decode.read("chosen").tolist() == [list(forced)]
        want = np.full(32, -1)
        want[list(blocks)] = list(blocks.values())
        np.testing.assert_array_equal(decode.read("pairs"), want)
        owners = sorted(e - 2 for e in forced if 2 <= e < 5)
        assert decode.read("block_expert").tolist() == [*owners, *[-1] * (2 - len(owners))]
        assert decode.read("num_blocks").tolist() == [len(blocks)]


def _few_tokens_router() -> KernelRecord:
    router = _router()
    places = ArgRecord("places", "buffer", "i8", ("T", 3), access="w")
    return replace(
        router,
        symbol="route_few",
        family="moe_choose",
        args=(*router.args[:3], places, ArgRecord("expert_first", "scalar", "i32"), router.args[3]),
        params={**router.params, "local_experts": 3},
    )


def test_what_few_tokens_are_made_to_take_is_in_their_places(tmp_path: Path) -> None:
    """Experts 2 to 4 are this rank's."""
    plan = _with_router(samples.plan("prefill"))
    names = ("scores", "chosen", "shares", "places", "2", "T")
    steps = [replace(s, launch="route_few", args=names) if s.op == "moe.route_topk" else s
             for s in plan.steps if isinstance(s, LaunchStep)]  # fmt: skip
    places = BufferRecord("places", "i8", ("T", 3), "output")
    plan = replace(plan, steps=tuple(steps), buffers=(*plan.buffers, places))
    with PackageWriter(tmp_path / "pkg") as writer:
        writer.add_plan(plan)
        writer.add_plan(samples.plan("decode"))
        writer.add_weights(samples.weights())
        writer.commit(samples.manifest(kernels=(*samples.kernels(), _few_tokens_router())))
    engine = Engine(tmp_path / "pkg", None, device="null", max_context=128)
    forced = np.array([[4, 2], [1, 3], [5, 0]])
    with ExpertTap(engine.executor, {4: forced}):
        engine.logits([1, 1, 1])
    runner = engine.executor.runner("prefill")
    np.testing.assert_array_equal(runner.read("chosen"), forced)
    assert runner.read("places").tolist() == [[2, 0, 1], [0, 2, 0], [0, 0, 0]]


def test_hooks_stand_between_the_steps(engine: Engine) -> None:
    device = engine.executor.device
    assert isinstance(device, NullDevice)
    seen: list[list[str]] = []
    runner = engine.executor.runner("prefill")
    for index in (0, 2):
        runner.after_step[index] = lambda r, s: seen.append([x["symbol"] for x in device.launches])
    engine.logits([1, 2])
    assert seen == [["embed"], ["embed", "route", "head"]]
    assert len(device.launches) == 3


def test_items_of_a_window() -> None:
    embed = samples.plan("prefill").steps[0]
    call = CallStep("gemm", ("x", "x", "x"), "k3.linear")
    reduce = CollectiveStep("all_reduce", ("x",), 1, "tp", "comm.all_reduce")
    steps = [embed, reduce, embed, call, embed, call]
    kernels = {k.symbol: k for k in samples.kernels()}
    table = LaunchTable(steps, kernels, {"tokens": 0, "w:table": 1, "x": 2})
    assert table.items == (LaunchRun(0, 2), CallItem(0), LaunchRun(2, 3), CallItem(1))
    assert table.items_of(2, 4) == (LaunchRun(1, 2), CallItem(0))
    assert table.items_of(4, 6) == (LaunchRun(2, 3), CallItem(1))
    assert table.items_of(1, 2) == ()
