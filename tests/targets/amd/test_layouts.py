"""Which weights of a package are laid out for FlyDSL's kernels."""

from __future__ import annotations

from typing import Literal

import pytest

from k3compiler.errors import K3Error
from k3compiler.package.manifest import ArgRecord, KernelRecord, LaunchStep, ParamRecord, Plan
from k3compiler.targets.layouts import shuffled_params

PARAMS = (
    ParamRecord("w", "i8", (4, 48, 192), {"tensor": "w"}),
    ParamRecord("s", "i8", (4, 48, 12), {"tensor": "s"}),
    ParamRecord("other", "f32", (4,), {"tensor": "other"}),
)
ARGUMENTS = (
    ArgRecord("w2", "buffer", "i8", (4, 48, 192)),
    ArgRecord("s2", "buffer", "i8", (4, 48, 12)),
    ArgRecord("y", "buffer", "bf16", ("T", 48), None, "w"),
)


def plan(phase: Literal["prefill", "decode"], symbol: str) -> Plan:
    step = LaunchStep(symbol, ("w:w", "w:s", "y"), ("1", "1", "1"), "moe.down")
    return Plan(phase=phase, inputs=(), outputs=(), buffers=(), storage=(), steps=(step,))


def kernel(symbol: str, form: str | None) -> KernelRecord:
    schedule = {} if form is None else {"form": form}
    return KernelRecord(
        symbol=symbol,
        family="moe_down",
        op="moe.down",
        args=ARGUMENTS,
        grid=("1", "1", "1"),
        schedule=schedule,
        files={"hsaco": "k.hsaco"},
    )


def test_weights_of_flydsl_kernels_are_laid_out_and_filled_up() -> None:
    kernels = {"a": kernel("a", "flydsl"), "b": kernel("b", "flydsl")}
    w, s, other = shuffled_params(PARAMS, [plan("prefill", "a"), plan("decode", "b")], kernels)
    assert w.shape == (4, 64, 256) and w.source == {"shuffle": "e2m1_16x128", "of": {"tensor": "w"}}
    assert s.shape == (4, 64, 16) and s.source == {"shuffle": "e8m0_32x256", "of": {"tensor": "s"}}
    assert other == PARAMS[2]


def test_other_packages_keep_theirs() -> None:
    kernels = {"a": kernel("a", None)}
    assert shuffled_params(PARAMS, [plan("prefill", "a")], kernels) == PARAMS


def test_one_parameter_has_one_layout() -> None:
    kernels = {"a": kernel("a", "flydsl"), "b": kernel("b", None)}
    with pytest.raises(K3Error, match="one layout for all kernels") as caught:
        shuffled_params(PARAMS, [plan("prefill", "a"), plan("decode", "b")], kernels)
    assert caught.value.code == "K3-T002"


def test_the_tile_program_of_such_a_kernel_reads_them_as_stored() -> None:
    """What ``k3c verify --on cpu`` runs has no code object."""
    from dataclasses import replace

    from k3compiler.package.shuffles import argument_layouts

    on_amd = kernel("a", "flydsl")
    assert set(argument_layouts(on_amd)) >= {"w2", "s2"}
    assert argument_layouts(replace(on_amd, files={"tile": "k.tile.mlir"})) == {}
