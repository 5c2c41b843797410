"""Builds one grouped product through FlyDSL, or says by name what it cannot do."""

from __future__ import annotations

import re

from k3compiler.errors import K3Error
from k3compiler.ir.context import parse_module
from k3compiler.ir.tile_program import describe
from k3compiler.package.manifest import LaunchRecord
from k3compiler.targets.amd.flydsl.adapter import link, require_flydsl
from k3compiler.targets.amd.flydsl.lower import FAMILIES, lower
from k3compiler.targets.amd.flydsl.tiling import NUM_WAVES, Tiling
from k3compiler.targets.amd.resources import resources_of
from k3compiler.targets.backend import BuildRequest, BuiltKernel, refuse_shared
from k3compiler.targets.base import TargetSpec
from k3compiler.targets.triton_ir.emitter import program_label

ISA = "gfx950"


def build_flydsl(request: BuildRequest, spec: TargetSpec) -> BuiltKernel:
    """A ``moe_gate_up`` or ``moe_down`` whose schedule says ``"form": "flydsl"``.

    Raises:
        K3Error: ``K3-T003`` no FlyDSL that was tried, ``K3-T002`` a shape or chip that it is not for, an error of
            LLVM, or spilled registers; ``K3-T004`` too much LDS.
    """
    require_flydsl(request.place)
    faults = _faults(request, spec)
    if faults:
        raise _refused(request, "; ".join(faults), f"{spec.name} ({spec.isa})")
    tiling = Tiling.of(request.family, request.params)
    refuse_shared(request, spec, tiling.lds_bytes)
    module = parse_module(request.tile_text)
    names = [(a.name, a.shape is not None) for a in describe(module).arguments]
    try:
        text = lower(request.family, request.params, names, request.symbol).assembly(spec.isa)
    except Exception as error:
        raise _refused(request, f"FlyDSL to take it for {spec.isa}", str(error)) from error
    assembly = f"; {program_label(module)}\n{text}"
    resources = resources_of(assembly)
    if resources.spill_bytes:
        raise _refused(request, "no spilled registers", f"{resources.spill_bytes} bytes a lane")
    files = {"s": assembly.encode(), "hsaco": link(text, spec.isa)}
    launch = LaunchRecord(num_warps=NUM_WAVES, num_stages=2, shared_bytes=tiling.lds_bytes)
    return BuiltKernel(request.symbol, files, launch, resources)


def _faults(request: BuildRequest, spec: TargetSpec) -> list[str]:
    if spec.isa != ISA:
        return [
            f"{ISA}: {spec.isa} has no scaled conversions, scaled products or 16-byte copies to LDS"
        ]
    if request.family not in FAMILIES:
        return [f"one of {', '.join(FAMILIES)}, not {request.family}"]
    params = request.params
    faults = Tiling.of(request.family, params).faults()
    types = {params[key] for key in ("dtype", "out_dtype") if key in params}
    if types not in ({"bf16"}, {"e4m3"}):
        faults.append(f"bf16 activations (or MXFP8), not {', '.join(sorted(types))}")
    warps = request.schedule.get("num_warps", NUM_WAVES)
    if warps != NUM_WAVES:
        faults.append(f"num_warps {NUM_WAVES}, not {warps}")
    return faults


def _refused(request: BuildRequest, expected: str, found: str) -> K3Error:
    return K3Error(
        "K3-T002",
        where=request.place,
        expected=expected,
        found=re.sub(r"\s+", " ", found)[:400],
        hint='the schedule chose FlyDSL ("form": "flydsl"); without that entry Triton builds it',
    )
