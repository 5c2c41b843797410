"""Launch tables, memory of a plan, caches by contract, and the CPU's instruction levels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from k3compiler.errors import K3Error
from k3compiler.package.manifest import BufferRecord, CallStep, LaunchStep, Plan
from k3compiler.runtime.decode_seats import build_decode
from k3compiler.runtime.device.base import LibraryCall, TensorRef
from k3compiler.runtime.device.cpu import LEVELS, CpuProgram, HostMemory, cpu_flags, tensor_view
from k3compiler.runtime.device.launch_table import LaunchTable
from k3compiler.runtime.device.null import NullDevice
from k3compiler.runtime.plan_runner import PlanRunner
from k3compiler.runtime.state import state_records
from k3compiler.runtime.step import SeqChunk, StepInputs, build_prefill
from tests.package import package_samples as samples

KERNELS = {k.symbol: k for k in samples.kernels()}


def _fixed(device: HostMemory) -> dict[str, TensorRef]:
    shape = (samples.VOCAB, samples.HIDDEN)
    return {n: TensorRef(device.allocate(1024), "f32", shape) for n in ("w:table", "w:head")}


def _runner(plan: Plan, device: NullDevice, **options: Any) -> PlanRunner:
    return PlanRunner(device, plan, KERNELS, _fixed(device), {"SLOTS": 5}, **options)


def _prefill(count: int) -> StepInputs:
    chunk = SeqChunk(range(count), 0, 1, list(range(1, 9)), "all")
    return build_prefill([chunk], page_columns=8, page_tokens=64, chunk_tokens=64)


def test_memory_grows_and_addresses_follow() -> None:
    device = NullDevice()
    runner = _runner(samples.plan("prefill"), device)
    runner.run(_prefill(4))
    version = runner.table.version
    runner.run(_prefill(3))
    assert runner.table.version == version, "a smaller step moves nothing"
    out = runner.run(_prefill(100), ["logits"])["logits"]
    assert out.shape == (100, samples.VOCAB)
    assert runner.table.version > version
    (embed, head) = device.launches[-2:]
    assert embed["args"]["x"] == head["args"]["x"] == runner.tensor("x").buffer.pointer
    assert head["args"]["logits"] == runner.tensor("logits").buffer.pointer
    assert embed["grid"] == (100, 1, 1)


def test_reserved_memory_does_not_move() -> None:
    runner = _runner(samples.plan("decode"), NullDevice())
    runner.reserve({"T": 8, "S": 8, "R": 8, "P": 4})
    version = runner.table.version
    for rows in (1, 8, 3):
        chunks = [SeqChunk([1], 0, i + 1, [i + 1]) for i in range(rows)]
        runner.run(build_decode(chunks, page_columns=4, page_tokens=64, num_rows=rows))
    assert runner.table.version == version


def test_poison_reaches_what_no_kernel_writes() -> None:
    """The null device writes nothing, so all of the output must be NaN; zero without poison."""
    for poison in (False, True):
        runner = _runner(samples.plan("prefill"), NullDevice(), poison=poison)
        out = runner.run(_prefill(5), ["logits"])["logits"]
        assert bool(np.isnan(out).all()) is poison
        assert bool((out == 0).all()) is not poison


def test_inputs_arrive_on_the_device() -> None:
    device = NullDevice()
    runner = _runner(samples.plan("prefill"), device)
    runner.run(_prefill(7))
    assert runner.read("tokens").tolist() == list(range(7))
    assert runner.read("logit_rows").tolist() == list(range(7))
    assert device.launches[0]["args"]["tokens"] == runner.pointer("tokens")


def test_derived_symbols_size_buffers_and_grids() -> None:
    plan = samples.plan("prefill")
    embed = plan.steps[0]
    assert isinstance(embed, LaunchStep)
    plan = replace(
        plan,
        symbols={"NB": "cdiv(T*2, 4) + SLOTS"},
        steps=(replace(embed, grid=("NB", "1", "1")), plan.steps[1]),
    )
    device = NullDevice()
    _runner(plan, device).run(_prefill(7))
    assert device.launches[0]["grid"] == (9, 1, 1)


def test_unknown_names_are_refused() -> None:
    plan = samples.plan("decode")
    embed = plan.steps[1]
    assert isinstance(embed, LaunchStep)
    for name in ("nothing", "kda_state.0", "w:other"):
        args = (name, *embed.args[1:])
        with pytest.raises(K3Error, match="K3-K003") as caught:
            _runner(replace(plan, steps=(replace(embed, args=args),)), NullDevice())
        assert name in caught.value.found
    with pytest.raises(K3Error, match="K3-K003"):
        _runner(replace(plan, inputs=("tokens", "logit_rows", "horoscope")), NullDevice())
    with pytest.raises(K3Error, match="K3-K002"):
        _runner(replace(plan, steps=(replace(embed, grid=("Q", "1", "1")),)), NullDevice()).run(
            build_decode([SeqChunk([1], 0, 1, [1])], page_columns=4, page_tokens=64, num_rows=1)
        )
    with pytest.raises(K3Error, match="inputs of the decode phase"):
        _runner(replace(plan, inputs=(*plan.inputs, "seq_seg")), NullDevice()).run(
            build_decode([SeqChunk([1], 0, 1, [1])], page_columns=4, page_tokens=64, num_rows=1)
        )


@pytest.mark.parametrize("text", ["1.5", "f:", "f:nan", "f:x"])
def test_float_arguments_are_checked(text: str) -> None:
    step = samples.plan("decode").steps[1]
    assert isinstance(step, LaunchStep)
    step = replace(step, args=(*step.args[:-1], text))
    with pytest.raises(K3Error, match="K3-K003"):
        LaunchTable([step], KERNELS, {"tokens": 0, "w:table": 1, "x": 2})


def test_library_calls_run_between_launches() -> None:
    """Rows before the call, the call, rows after it, in the plan's order."""
    ran: list[tuple[str, int]] = []
    device = HostMemory()

    class Recording(NullDevice):
        def program(self, table: LaunchTable) -> Any:
            base: list[int] = []

            def rows(address: int, count: int) -> None:
                base[:] = base or [address]
                ran.append(("launch", (address - base[0]) // 64))
                ran.extend(("launch", (address - base[0]) // 64 + i) for i in range(1, count))

            program = CpuProgram(table, [0] * len(table), rows, 1)
            return _Calls(program, ran)

    call = CallStep("gemm", ("x", "w:head", "logits"), "k3.linear")
    plan = samples.plan("prefill")
    plan = replace(plan, steps=(plan.steps[0], call, plan.steps[1]))
    runner = PlanRunner(Recording(), plan, KERNELS, _fixed(device), {})
    runner.run(_prefill(3))
    assert ran == [("launch", 0), ("gemm", 3), ("launch", 1)]


class _Calls:
    """Runs a CPU program with its library calls recorded in place."""

    def __init__(self, program: CpuProgram, ran: list[tuple[str, int]]) -> None:
        self._program, self._ran = program, ran

    def run(self, calls: Sequence[LibraryCall], graph_key: tuple[int, ...] | None) -> None:
        from k3compiler.runtime.device import cpu

        def record(call: LibraryCall) -> None:
            self._ran.append((call.name, call.args[0].shape[0]))

        plain = cpu._library_call
        cpu._library_call = record
        try:
            self._program.run(calls, graph_key)
        finally:
            cpu._library_call = plain


def test_gemm_on_the_host() -> None:
    from k3compiler.runtime.device.cpu import _library_call

    device = HostMemory()
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(3, 8)).astype(np.float32), rng.normal(size=(5, 8)).astype(np.float32)
    refs = [TensorRef(device.allocate(400), "f32", s) for s in ((3, 8), (5, 8), (3, 5))]
    device.upload(refs[0].buffer, x)
    device.upload(refs[1].buffer, w)
    _library_call(LibraryCall("gemm", tuple(refs), "k3.linear"))
    np.testing.assert_allclose(tensor_view(refs[2]), x @ w.T, rtol=1e-6)


def test_state_follows_the_contract_or_the_plan() -> None:
    plan = samples.plan("decode")
    step = plan.steps[0]
    names = ("kda_state.0", "kda_conv.0", "mla_cache.1")
    used = replace(plan, steps=(*plan.steps, replace(step, args=names)))
    records = state_records(samples.manifest(), [used])
    assert {n: (r.dtype, r.shape) for n, r in records.items()} == {
        "kda_state.0": ("f32", ("SLOTS", 2, 4, 4)),
        "kda_conv.0": ("f32", ("SLOTS", 3, 24)),
        "mla_cache.1": ("f32", ("PAGES", 64, 8)),
    }
    listed = BufferRecord("mla_cache.1", "bf16", ("PAGES", 64, 16), "state")
    records = state_records(samples.manifest(), [replace(used, buffers=(listed,))])
    assert records["mla_cache.1"].num_bytes({"PAGES": 3}) == 3 * 64 * 16 * 2


def test_cpu_levels(tmp_path: Path) -> None:
    path = tmp_path / "cpuinfo"
    path.write_text("processor : 0\nflags\t\t: fpu avx avx2 fma\n\nprocessor : 1\nflags : x\n")
    assert cpu_flags(path) == {"fpu", "avx", "avx2", "fma"}
    assert LEVELS["x86-64-v3"] < LEVELS["x86-64-v4"]
    assert list(LEVELS) == ["x86-64-v4", "x86-64-v3"], "best first"
